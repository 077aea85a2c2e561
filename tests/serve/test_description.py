"""OpenAPI and /docs say what the service does."""

import json
import re
import shlex
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from service import GOOD, Service

from attenuator.api import Classification, ErrorBody, Health, ModelList
from attenuator.ops import KNOBS
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.api.documentation import FILM_INPUTS, Example, classify_body
from attenuator.serve.api.routes import Routes
from attenuator.serve.app import create_api
from attenuator.serve.engine import Engine
from attenuator.serve.observe.metrics import Metrics
from attenuator.serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def described(service: Service) -> dict[str, Any]:
    return dict(service.client.get("/openapi.json").json())


def test_request_fields_have_their_bounds(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    request = schemas["ClassifyRequest"]
    fields = request["properties"]
    for knob in KNOBS.values():
        assert (fields[knob.name]["minimum"], fields[knob.name]["maximum"]) == (knob.low, knob.high)
        assert fields[knob.name]["type"] == ("integer" if knob.dtype == "int32" else "number")
    assert request["additionalProperties"] is False
    assert request["required"] == ["inputs"]
    text, items = fields["inputs"]["anyOf"]
    assert (text["minLength"], items["minItems"], items["maxItems"]) == (1, 1, 256)
    assert schemas["TextInput"]["properties"]["text"]["minLength"] == 1
    assert schemas["TextInput"]["properties"]["text_pair"]["minLength"] == 1
    ids = schemas["TokenInput"]["properties"]["token_ids"]
    assert (ids["minItems"], ids["items"]["type"], ids["items"]["minimum"]) == (1, "integer", 0)


def test_only_what_takes_null_is_nullable(service: Service, described: dict[str, Any]) -> None:
    for name, field in described["components"]["schemas"]["ClassifyRequest"]["properties"].items():
        assert "default" not in field or field["default"] is not None
        nullable = {"type": "null"} in field.get("anyOf", [])
        knobs = {knob: GOOD[knob] for knob in KNOBS if knob in GOOD and knob != name}
        status = service.classify({"model": "yoso", "inputs": "good", **knobs, name: None}).status_code
        assert (status == 200) == nullable, name


def test_every_schema_that_is_named_is_there(described: dict[str, Any]) -> None:
    names = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(described)))
    assert {"ClassifyRequest", "Classification", "ErrorBody", "ModelList", "ModelInfo", "KnobInfo", "Health"} <= names
    assert names <= set(described["components"]["schemas"])


def test_routes_list_their_statuses(described: dict[str, Any]) -> None:
    statuses = {path: set(next(iter(methods.values()))["responses"]) for path, methods in described["paths"].items()}
    for answers in statuses.values():
        answers.remove("421")  # which every route has: the Host header is checked before the route is looked for
    errors = {"400", "404", "408", "413", "415", "422", "429", "500", "503", "504"}
    model, version = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
    assert statuses == {
        "/v1/classify": {"200", *errors},
        "/v1/models": {"200", "503"},
        "/health/live": {"200"},
        "/health/startup": {"200", "503"},
        "/health/ready": {"200", "503"},
        "/health": {"200", "503"},
        "/v2/health/live": {"200"},
        "/v2/health/ready": {"200", "503"},
        "/metrics": {"200"},
        "/predict": {"200", "424", *errors} - {"500"},
        "/info": {"200", "400", "404", "422", "503"},
        "/classify": {"200", *errors} - {"422"},
        **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), {"200", *errors}),
        **dict.fromkeys(("/v1/score", "/score"), {"200", *errors} - {"422"}),
        "/v2": {"200"},
        **{path: {"200", "404", "503"} for base in (model, version) for path in (base, f"{base}/ready")},
        **{f"{base}/infer": {"200", *errors} - {"422"} for base in (model, version)},
    }
    page = (ROOT / "docs/http.md").read_text(encoding="utf-8")
    named = {path.replace(version, model) for path in statuses}
    assert [path for path in sorted(named) if f" {path}`" not in page] == []
    post = described["paths"]["/v1/classify"]["post"]
    assert "security" not in post
    assert "Retry-After" in post["responses"]["429"]["headers"]


def test_answers_are_of_their_schemas(service: Service, described: dict[str, Any]) -> None:
    """The models forbid nothing, so that fields are compared by name too."""
    answers = {
        Classification: service.classify(GOOD | {"top_k": 2, "return_logits": True}),
        ModelList: service.client.get("/v1/models"),
        Health: service.client.get("/health/ready"),
        ErrorBody: service.classify({}),
    }
    for kind, answer in answers.items():
        parsed = kind.model_validate_json(answer.content)
        assert json.loads(parsed.model_dump_json(exclude_none=kind in (Classification, Health))) == answer.json()
        properties = described["components"]["schemas"][kind.__name__]["properties"]
        assert set(answer.json()) <= set(properties)


def test_key_is_declared_where_there_is_one(start: Callable[..., Service]) -> None:
    one = start("--api-key", "sesame-sesame")
    described = one.client.get("/openapi.json").json()
    [(name, scheme)] = described["components"]["securitySchemes"].items()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    operations = {path: next(iter(methods.values())) for path, methods in described["paths"].items()}
    keyed = {path: operation for path, operation in operations.items() if path.startswith("/v1/")}
    assert {"/v1/classify", "/v1/models"} <= set(keyed)
    for operation in keyed.values():
        assert operation["security"] == [{name: []}]
        assert "401" in operation["responses"]
        assert "WWW-Authenticate" in operation["responses"]["401"]["headers"]
    assert "security" not in described["paths"]["/health/ready"]["get"]
    assert "Authorization: Bearer" in one.client.get("/docs").text


def test_example_of_the_page_works_on_a_server_of_several_models(service: Service) -> None:
    page = service.client.get("/docs").text
    assert set(re.findall(r'(?:src|stylesheet" href)="(.*?)"', page)) == {
        f"page/{name}" for name in ("icon.svg", "reference.js", "style.css")
    }  # works offline
    example = re.search(r'<pre [^>]*label="curl">(.*?)</pre>', page, re.DOTALL)
    assert example
    command = shlex.split(unescape(example[1]).replace("\\\n", " "))
    assert command[:3] == ["curl", "-s", f"http://127.0.0.1:{service.port}/v1/classify"]
    assert command[3:6] == ["-H", "Content-Type: application/json", "-d"]
    answer = service.client.post(command[2], content=command[6], headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert len(answer.json()["predictions"]) == 2


def test_an_example_fits_the_model_that_it_names() -> None:
    films = Example("reviews", ("negative", "positive"))
    assert films.inputs == FILM_INPUTS
    body = classify_body(Example("news", ("World", "Sports", "Business"))).example
    assert body == {"model": "news", "inputs": ["A text about World.", "A text about Business."], "top_k": 2}
    assert "top_k" not in classify_body(Example("people", ("O", "B-PER"), of_tokens=True)).example
    assert classify_body(Example("stars", ("rating",))).example["top_k"] == 1, "no more labels than there are"


def test_the_reference_names_and_links_every_route_and_type(service: Service, described: dict[str, Any]) -> None:
    page = service.client.get("/docs").text
    anchors = set(re.findall(r'id="([^"]+)"', page))
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert links <= anchors
    assert set(described["components"]["schemas"]) <= links
    assert {"post-v1-classify", "get-v1-models", "try", "routes", "types"} <= links


def test_description_is_made_once() -> None:
    settings = ServeSettings()
    engine = Engine(settings)
    api = create_api(Routes(engine, settings, KeyRing(None, None), Metrics().exposition), engine)
    assert api.openapi() is api.openapi()
