"""The check of a request: strict, unknown fields refused, one sentence for whatever is wrong.

What a request may have stands in `attenuator.api`; knob values are checked against the model's own bounds, everything
else by `runtime.request`. Whatever here and in `peers/` finds a fault raises `InvalidRequest`, which names the field,
what was given and what is allowed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from attenuator.api import CLASSIFY, Options
from attenuator.errors import InvalidRequest, UnknownField
from attenuator.json_body import MalformedBody
from attenuator.ops import KNOBS
from attenuator.ops.knobs import shown
from attenuator.runtime import Input, Model
from attenuator.runtime.entities import Tagging
from attenuator.runtime.grouping import GROUPING, Grouped
from attenuator.runtime.request import OPTIONS, check_top_k, check_values, parse_inputs, unknown_field
from attenuator.runtime.windows import Windows
from attenuator.runtime.zero_shot import Candidates
from attenuator.serve.accuracy.list_steps import ListFields
from attenuator.serve.accuracy.plan import Asked

TRUNCATE, TIMEOUT = "truncate", "timeout_ms"
HEADER = "Attenuator-Parameters"  # where the bodies of another server's protocol have no room for knobs and options


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A checked request.

    Attributes:
        items: the inputs.
        options: fields besides inputs and knobs.
        asked: what these and the knobs say about its accuracy.
        has_seed: whether the caller set `seed`: null draws one, and without the field the server's own applies.
        rows_of: what the texts become once they are tokenized: their windows, or tokens to be told apart; None where
            each is one row.
    """

    items: list[Input]
    options: Options
    asked: Asked
    has_seed: bool
    rows_of: Windows | Tagging | None = None

    def take_items(self) -> list[Input]:
        """Lets go of the inputs and gives those that another model may need.

        Texts of megabytes are not kept while the request waits.
        """
        steps = self.asked.steps
        kept = list(self.items) if steps is not None and steps.cascade and not steps.whole else []
        self.items.clear()
        return kept

    def by_last(self, items: list[Input]) -> "ParsedRequest":
        """The same where the last model of a cascade scores all documents."""
        assert self.asked.steps is not None
        return replace(self, items=items, asked=self.asked.by_last(self.asked.steps))


def model_name(raw: Mapping[str, Any], served: Iterable[str]) -> str | None:
    """The model that a body names, or None where it names none."""
    name = raw.get("model")
    if "model" not in raw or isinstance(name, str):
        return name
    sentence = f"model is {shown(name)}, must be the name of a served model"
    raise InvalidRequest(sentence, param="model", allowed=", ".join(served))


def parse_request(raw: Mapping[str, Any], model: Model, grouped: Grouped | None = None) -> ParsedRequest:
    """Checks the fields of a body against the model that it names.

    Args:
        raw: the fields, without those of `GROUPING`.
        model: which answers.
        grouped: what these say; None where each input is one row.
    """
    for name in raw:
        if name not in OPTIONS and name not in KNOBS and name != "inputs":
            raise unknown_field(name, [*dict.fromkeys(["inputs", *OPTIONS, *GROUPING, *model.knobs.names])])
    if grouped is None:
        return assemble(raw, model, parse_inputs(raw))
    texts = list(parse_inputs(raw))
    if not isinstance(grouped, Candidates):
        inputs = grouped.inputs(texts)
        return replace(assemble(raw, model, inputs, grouped.labels), rows_of=grouped)
    grouped.check_size(texts)
    return assemble(raw, model, grouped.inputs(texts), grouped.labels)


def assemble(
    fields: Mapping[str, Any],
    model: Model,
    inputs: Iterable[Input],
    labels: Sequence[str] | None = None,
    of_list: ListFields | None = None,
) -> ParsedRequest:
    """Checks the values of a request's fields, whose names are known, and of its inputs, and puts it together.

    Args:
        fields: by name.
        model: that is asked.
        inputs: taken in the end.
        labels: those that the answer can have, by default the model's, of which it then says one for each input.
        of_list: the fields about the steps of a list, checked; None where the inputs are none.
    """
    if labels is None:
        refuse_tokens(model)
    requested: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in fields.items():
        (requested if name in KNOBS else others)[name] = value
    others.pop("inputs", None)  # they come as an argument
    knobs = model.knobs.check(requested)
    options = check_values(Options, others, nullable=("seed",))
    asked = Asked.of(model, options, knobs, requested, of_list)
    check_top_k(len(model.manifest.labels if labels is None else labels), options)
    items = list(inputs)
    return ParsedRequest(items, options, asked, "seed" in fields)


def refuse_tokens(model: Model) -> None:
    """Refuses a token classifier where an answer is about whole texts.

    Raises:
        InvalidRequest: that is so.
    """
    if model.manifest.reads_tokens:
        sentence = f"model '{model.manifest.name}' answers the entities of a text, which only POST {CLASSIFY} can show"
        raise InvalidRequest(sentence, param="model", allowed="a model that classifies whole texts")


def in_own_names(error: InvalidRequest, own_names: Mapping[str, str]) -> InvalidRequest:
    """An error of the shared path whose fields are called as in the request, by `answers.Form.own_names`."""
    param, sentence = error.param or "", str(error)
    name = re.split(r"[.\[]", param, maxsplit=1)[0]
    for each in {name, TRUNCATE} & own_names.keys():  # sentences on lengths advise to set the second
        sentence = re.sub(rf"(?<![\w.'/-]){each}(?!\w)", own_names[each], sentence)
    if name in own_names:
        param = own_names[name] + param.removeprefix(name)
    return type(error)(sentence, param=None if error.param is None else param, allowed=error.allowed)


def refuse_elsewhere(request: Request, place: str | None = "the JSON body", *, takes_header: bool = True) -> None:
    """Refuses fields that stand beside the body: if they were ignored, a knob would seem to be set.

    Args:
        request: the request.
        place: where the fields of a query string should stand; None where the route takes none.
        takes_header: whether they may stand in `HEADER`.
    """
    if not takes_header and HEADER in request.headers:
        sentence = f"the header {HEADER} is not accepted here: put its fields in the JSON body"
        raise UnknownField(sentence, param=HEADER, allowed="no such header")
    if not request.scope["query_string"]:
        return
    for name in request.query_params:
        short = name[:64]
        hint = f"put '{short}' in {place}" if place else f"leave '{short}' out"
        raise UnknownField(f"query parameters are not accepted: {hint}", param=short, allowed="no query string")


def refuse_encoding(request: Request) -> None:
    """Refuses a compressed body with MalformedBody and says so; otherwise the error would be that it is not JSON."""
    encoding = ", ".join(request.headers.getlist("content-encoding")).strip()
    if encoding.lower() not in ("", "identity"):
        raise MalformedBody(f"the body has Content-Encoding '{encoding[:40]}', must be sent without one")


def single_header(request: Request, name: str) -> str | None:
    """The value of a header; None where the request has no such header.

    Raises:
        MalformedBody: it is there more than once: what stands between here and the caller may have read another one.
    """
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise MalformedBody(f"the header {name} is there {len(values)} times, must be there once")
    return values[0] if values else None
