"""Models are loaded, replaced and unloaded while the service answers: every answer is bit for bit its revision's."""

import asyncio
import json
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
import tiny
from service import Service, Started

from attenuator import bundle
from attenuator.errors import InvalidRequest, UnknownModel
from attenuator.runtime import Input, Row, load
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.api.admin import bundle_folder
from attenuator.serve.api.errors import response_for
from attenuator.serve.app import create_app
from attenuator.serve.engine import Engine
from attenuator.serve.settings import ServeSettings

KEY, ADMIN = {"Authorization": "Bearer user-key"}, {"Authorization": "Bearer admin-key"}
TEXTS = ["good film", "a bad plot", "very very good " * 30]
LONG = "good film " * 4000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of bundles: two revisions of one model, another model, and one that is damaged."""
    folder = tmp_path_factory.mktemp("root")
    tiny.write(folder / "first", "yoso", name="yoso")
    tiny.write(folder / "second", "yoso", name="yoso", seed=2)
    tiny.write(folder / "other", "softmax", name="other")
    damaged = Path(shutil.copytree(folder / "second", folder / "damaged"))
    with (damaged / bundle.MODEL).open("r+b") as file:
        file.seek(5000)
        file.write(b"\x00\x01\x02\x03")
    return folder


@pytest.fixture(scope="module")
def one(root: Path) -> Iterator[Service]:
    """A server of the first revision, with an admin key."""
    flags = ("--threads", "1", "--api-key", "user-key", "--admin-key", "admin-key", "--bundle-root", str(root))
    started = Started([root / "first"], *flags)
    started.client.headers.update(KEY)
    yield started
    assert started.stop() == 0


def put(service: Service, name: str, path: object, headers: dict[str, str] = ADMIN) -> Any:
    return service.client.put(f"/v1/models/{name}", json={"bundle": path}, headers=headers)


def logits_of(folder: Path) -> tuple[str, dict[str, list[bytes]]]:
    """Revision of a bundle, and what it answers to each text, at seed 0."""
    model = load(folder, check=False, threads=1)
    answers = {}
    for text in [*TEXTS, LONG]:
        encoded = Input("inputs", text).encode(model.encoder, False)
        knobs = model.knobs.check({"num_hashes": 0 if text == LONG else 8})
        [result] = model.run([Row(encoded.token_ids, encoded.type_ids, knobs, 0)])
        answers[text] = result.logits.tobytes()
    return model.manifest.revision, answers


def ask(service: Service, text: str, inputs: int = 1, num_hashes: int = 8) -> tuple[str, str, set[bytes]]:
    """Revision, text and logits of an answer."""
    body = {"inputs": [text] * inputs, "num_hashes": num_hashes, "seed": 0, "return_logits": True}
    answer = service.classify(body)
    assert answer.status_code == 200, answer.text
    rows = answer.json()["predictions"]
    return answer.json()["revision"], text, {np.array(row["logits"], np.float32).tobytes() for row in rows}


def test_replaced_under_load_every_answer_is_its_revisions(one: Service, root: Path) -> None:
    expected = dict(logits_of(root / name) for name in ("first", "second"))
    first, second = expected
    stop = Event()
    answers: list[tuple[str, str, set[bytes]]] = []

    def keep_asking(index: int) -> None:
        while not stop.is_set():
            answers.append(ask(one, TEXTS[index % len(TEXTS)]))

    with ThreadPoolExecutor(5) as threads:
        try:
            asking = [threads.submit(keep_asking, index) for index in range(3)]
            long = threads.submit(ask, one, LONG, 3, 0)
            while 'lane="heavy"} 1.0' not in one.client.get("/metrics").text:
                assert not long.done()
            for name in ("second", "first"):
                replaced = put(one, "yoso", name)
                assert replaced.status_code == 200
                assert replaced.json()["revision"] == dict(first=first, second=second)[name]
                assert ask(one, TEXTS[0])[0] == dict(first=first, second=second)[name], "new requests get it at once"
        finally:
            stop.set()
        for future in asking:
            future.result()
        answers.append(long.result())
    assert answers[-1][0] == first, "it began before the bundle was replaced"
    assert {revision for revision, _, _ in answers} == {first, second}
    assert all(logits == {expected[revision][text]} for revision, text, logits in answers)
    assert "requests failed" not in one.log()


def test_a_revision_is_freed_with_its_last_request(one: Service) -> None:
    assert put(one, "yoso", "second").status_code == 200
    one.wait_for_log("freed yoso")
    end = time.monotonic() + 20
    while len(states := re.findall(r'attenuator_models{.*state="(\w+)"}', one.client.get("/metrics").text)) > 1:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert states == ["serving"]


def test_a_model_is_added_and_unloaded(one: Service) -> None:
    added = put(one, "other", "other")
    assert (added.status_code, added.json()["name"]) == (201, "other")
    assert one.classify({"model": "other", "inputs": "good"}).status_code == 200
    assert [model["name"] for model in one.client.get("/v1/models").json()["models"]] == ["yoso", "other"]
    assert one.client.delete("/v1/models/other", headers=ADMIN).status_code == 204
    one.wait_for_log("freed other")
    gone = one.classify({"model": "other", "inputs": "good"})
    assert (gone.status_code, gone.json()["error_type"]) == (404, "unknown_model")
    again = one.client.delete("/v1/models/other", headers=ADMIN)
    assert (again.status_code, again.json()["error_type"]) == (404, "unknown_model")


def test_without_a_model_the_service_is_not_ready(one: Service) -> None:
    assert one.client.delete("/v1/models/yoso", headers=ADMIN).status_code == 204
    ready = one.client.get("/health/ready")
    assert (ready.status_code, ready.json()["reason"]) == (503, "no model is loaded")
    for body in ({"inputs": "good"}, {"model": "yoso", "inputs": "good"}):
        refused = one.classify(body)
        assert (refused.status_code, refused.json()["error_type"]) == (503, "not_ready")
    assert put(one, "yoso", "first").status_code == 201
    assert one.client.get("/health/ready").status_code == 200


UNSERVABLE = {
    "damaged": "model.onnx is damaged",
    "other": "bundle holds a model called 'other', must be called 'yoso'",
}


@pytest.mark.parametrize("path", UNSERVABLE)
def test_a_bundle_that_cannot_be_served_leaves_the_old_one(one: Service, path: str) -> None:
    revision = ask(one, TEXTS[0])[0]
    refused = put(one, "yoso", path)
    assert (refused.status_code, refused.json()["param"]) == (422, "bundle")
    assert UNSERVABLE[path] in refused.json()["error"]
    assert ask(one, TEXTS[0])[0] == revision


def test_a_bundle_of_another_name_is_refused_before_it_is_loaded(one: Service) -> None:
    refused = put(one, "elsewhere", "damaged")
    assert refused.status_code == 422
    assert "bundle holds a model called 'yoso', must be called 'elsewhere'" in refused.json()["error"]


def test_only_the_admin_key_may_change_models(one: Service) -> None:
    for headers in ({}, KEY):
        one.client.headers.pop("Authorization", None)
        assert put(one, "yoso", "first", headers).status_code == 401
        assert one.client.delete("/v1/models/yoso", headers=headers).status_code == 401
    one.client.headers.update(KEY)
    assert one.client.get("/v1/models", headers=ADMIN).status_code == 401
    one.wait_for_log("PUT /v1/models/{name} 401")
    assert "admin-key" not in one.log()
    assert "user-key" not in one.log()


def test_wrong_bodies_are_refused(one: Service) -> None:
    for body in ({}, {"bundle": 3}, {"bundle": ""}, {"bundle": "first", "force": True}, {"bundle": "nowhere"}):
        refused = one.client.put("/v1/models/yoso", json=body, headers=ADMIN)
        assert refused.status_code == 422, body
    assert one.client.put("/v1/models/yoso", content=b"{", headers=ADMIN).status_code == 400
    listed = one.client.put("/v1/models/yoso", json=[], headers=ADMIN)
    assert (listed.status_code, listed.json()["allowed"]) == (422, '{"bundle": ..}')
    surrogate = one.client.put("/v1/models/yoso", content=b'{"bundle": "\\ud800"}', headers=ADMIN)
    assert surrogate.status_code == 422
    assert len(put(one, "x" * 8000, "first").content) < 1000


def test_queries_and_compressed_bodies_are_refused_as_everywhere(one: Service) -> None:
    path = "/v1/models/yoso?force=true"
    for refused in (
        one.client.put(path, json={"bundle": "second"}, headers=ADMIN),
        one.client.delete(path, headers=ADMIN),
    ):
        assert (refused.status_code, refused.json()["param"]) == (422, "force")
    zipped = one.client.put("/v1/models/yoso", json={"bundle": "second"}, headers=ADMIN | {"Content-Encoding": "gzip"})
    assert (zipped.status_code, zipped.json()["error_type"]) == (400, "malformed_body")


def test_other_methods_are_told_both_that_there_are(one: Service) -> None:
    refused = one.client.get("/v1/models/yoso")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "DELETE, PUT")


def test_a_failure_of_any_route_is_answered_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServeSettings()
    engine = Engine(settings)
    transport = httpx.ASGITransport(create_app(engine, settings, KeyRing(None, None)))
    monkeypatch.setattr(engine, "check_started", lambda: 1 / 0)

    async def scenario() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.get("/v1/models")
            assert (answer.status_code, answer.json()["error_type"]) == (500, "internal_error")

    asyncio.run(scenario())


def test_routes_are_described(one: Service) -> None:
    described = one.client.get("/openapi.json").json()
    routes = described["paths"]["/v1/models/{name}"]
    assert set(routes) == {"put", "delete"}
    assert routes["put"]["security"] == [{"AdminKey": []}]
    body = routes["put"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("/LoadRequest")
    assert set(body["example"]) == set(described["components"]["schemas"]["LoadRequest"]["required"])


def test_without_an_admin_key_there_are_no_such_routes() -> None:
    settings = ServeSettings()
    transport = httpx.ASGITransport(create_app(Engine(settings), settings, KeyRing(None, None)))

    async def scenario() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for method in ("PUT", "DELETE"):
                answer = await client.request(method, "/v1/models/yoso", headers=ADMIN)
                assert (answer.status_code, answer.json()["error_type"]) == (404, "not_found")

    asyncio.run(scenario())


def test_a_refusal_lists_the_models_and_not_thousands_of_them() -> None:
    catalog = Engine(ServeSettings()).catalog
    catalog.models.update(dict.fromkeys((f"model-{index}" for index in range(2000)), object()))  # type: ignore[arg-type]
    with pytest.raises(UnknownModel) as refused:
        catalog.named("nobody")
    assert refused.value.allowed is not None
    assert refused.value.allowed.startswith("model-0, model-1")
    assert refused.value.allowed.endswith("and 1984 more")
    assert json.loads(response_for(refused.value).body)["allowed"] == refused.value.allowed


def test_no_path_leads_out_of_the_roots(root: Path, tmp_path: Path) -> None:
    inside, empty = tmp_path / "inside", tmp_path / "empty"
    inside.mkdir()
    empty.mkdir()
    (tmp_path / "inside-too").mkdir()
    (inside / "bundle").mkdir()
    (inside / "file").touch()
    (inside / "link").symlink_to(root / "first")
    (inside / "circle").symlink_to(inside / "circle")
    (inside / "within").symlink_to(inside / "bundle")
    for path in ("bundle", str(inside / "bundle"), "../inside/bundle", "within"):
        assert bundle_folder({"bundle": path}, [empty, inside]) == (inside / "bundle").resolve()
    for path in (
        str(root / "first"),
        "../../etc",
        "/etc",
        "link",
        "circle",
        "file",
        "../inside-too",
        "no\0ne",
        "~",
        "\ud800",
    ):
        with pytest.raises(InvalidRequest) as refused:
            bundle_folder({"bundle": path}, [empty, inside])
        assert refused.value.param == "bundle"
    for path, sentence in (("", "bundle is empty, must be"), ("a\0b", "bundle has a zero byte, must be")):
        with pytest.raises(InvalidRequest, match=sentence):
            bundle_folder({"bundle": path}, [inside])
    with pytest.raises(InvalidRequest, match="--bundle-root is not set"):
        bundle_folder({"bundle": "bundle"}, [])


def test_the_admin_key_is_none_of_the_api_keys() -> None:
    with pytest.raises(ValueError, match="must differ from the API key"):
        ServeSettings.model_validate({"api_key": "same", "admin_key": "same"})
    assert ServeSettings.model_validate({"bundle_root": "a, b"}).bundle_root == [Path("a"), Path("b")]
