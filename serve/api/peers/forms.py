"""Base of the forms of other servers' requests: fields in the body and in the header `Attenuator-Parameters`.

The header holds one JSON object of the fields of `POST /v1/classify`. The answers of these routes have the header
`Attenuator-Result`: which model answered, with which knobs, and who chose them.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from fastapi import Request
from pydantic import BaseModel

from attenuator.api import CLASSIFY, Options
from attenuator.errors import AttenuatorError, InvalidRequest, UnknownField
from attenuator.json_body import parse_json
from attenuator.ops import KNOBS
from attenuator.runtime.request import unknown_field
from attenuator.serve.api.answers import Answer, Form
from attenuator.serve.api.schema import HEADER, single_header

RESULT_HEADER = "Attenuator-Result"
IN_HEADER = f"the header {HEADER}"
# Fields of POST /v1/classify that the other protocols spell their own way, or whose results their answers cannot hold.
ELSEWHERE = frozenset({"model", "top_k", "truncate", "return_logits", "explain"})
EXPLAIN = "explain"
RESULT = frozenset({"model", "revision", "knobs", "chosen_by", "expected_agreement", "seed", "steps", "relative_cost"})

Fields = dict[str, Any]


def shared_names() -> list[str]:
    """Fields of `POST /v1/classify` that every protocol takes: knobs, goals, seed, time limits."""
    return [name for name in Options.model_fields if name not in ELSEWHERE] + list(KNOBS)


def header_fields(request: Request, known: Collection[str]) -> Fields:
    """The fields in a request's header; none where it has no such header.

    Raises:
        MalformedBody: the header is not JSON, or there are two.
        InvalidRequest: it is not an object, has a field twice, or one that is not `known`.
    """
    value = single_header(request, HEADER)
    if value is None:
        return {}
    try:
        fields = parse_json(value.encode("latin-1"))
    except AttenuatorError as error:
        reason = str(error).replace("the body", "it", 1)
        raise type(error)(f'the header {HEADER} must be a JSON object such as {{"seed": 7}}: {reason}') from None
    check_names(fields, known, f"{HEADER}.")
    return fields


def check_names(fields: Mapping[str, Any], known: Collection[str], prefix: str = "") -> None:
    """Refuses fields that a request cannot have."""
    for name in fields:
        if name == EXPLAIN and name not in known:
            sentence = (
                f"{prefix}{name} is not accepted here, where an answer has no room for how sure it is: ask "
                f"POST {CLASSIFY}, or POST /v2/models/{{model}}/infer with {name} in its parameters"
            )
            raise UnknownField(sentence, param=prefix + name, allowed=f"no {name}")
        if name not in known:
            raise unknown_field(name, list(dict.fromkeys(known)), prefix)


def selected(fields: Mapping[str, Any], names: Collection[str]) -> Fields:
    """The fields of some names."""
    return {name: value for name, value in fields.items() if name in names}


def class_of(priority: str | int | None, first_batch: int) -> Fields:
    """The field `priority` of a request whose protocol counts priorities.

    Args:
        priority: a class by its name or, as the protocol has it, a number: 0 leaves it open.
        first_batch: from which number on a request can wait.
    """
    if isinstance(priority, str):
        return {"priority": priority}
    return {"priority": "batch" if priority >= first_batch else "interactive"} if priority else {}


def result_header(answer: Answer) -> dict[str, str]:
    """The header that says how a request was answered."""
    return {RESULT_HEADER: json.dumps(selected(answer.fields, RESULT))}


def filled(head: BaseModel, name: str, members: bytes) -> bytes:
    """The JSON of an answer whose list of a name is empty, with what its members are."""
    before, start, after = head.model_dump_json().encode().rpartition(f'"{name}":['.encode())
    return before + start + members + after


class PeerForm(Form):
    """What the forms of other servers' requests have in common.

    Attributes:
        header_names: fields that the header may have besides knobs, goals and options.
    """

    takes_header = True
    header_names: Collection[str] = ("model",)

    def __init__(self, request: Request) -> None:
        self._request = request

    def read(self, fields: Fields, names: Collection[str]) -> Fields:
        """The fields of a body that may have `names` besides knobs, goals and options, together with the header's."""
        header = header_fields(self._request, [*self.header_names, *shared_names()])
        check_names(fields, [*names, *shared_names()])
        return self.gathered({"the body": fields, IN_HEADER: header})

    def gathered(self, places: Mapping[str, Fields]) -> Fields:
        """Fields from several places of the request, by what sentences call the place; notes what it calls them.

        Raises:
            InvalidRequest: a field stands in two of them.
        """
        prefixes = {"parameters": "parameters.", IN_HEADER: f"{HEADER}."}
        self.own_names = {name: own + name for place, own in prefixes.items() for name in places.get(place, ())}
        origin: dict[str, str] = {}
        for place, fields in places.items():
            for name in fields:
                if name in origin:
                    sentence = f"{name} is set in {origin[name]} and in {place}, must be set once"
                    raise InvalidRequest(sentence, param=name, allowed="each field once")
                origin[name] = place
        return {name: value for fields in places.values() for name, value in fields.items()}
