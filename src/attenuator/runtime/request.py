"""The fields of a request, knobs among them, checked: one sentence for whatever is wrong, over HTTP and in process.

What a request may have stands in `attenuator.api`. Whatever here finds a fault raises `InvalidRequest`, which names the
field, what was given and what is allowed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from attenuator.api import INPUT_KINDS, MAX_INPUTS, Options
from attenuator.bundle import BundleKnob, Manifest
from attenuator.calibration import Calibration, how_to_calibrate
from attenuator.errors import InvalidRequest, NotCalibrated, UnknownField, closest, printable
from attenuator.ops.knobs import KnobValue, check_knob, describe, shown
from attenuator.runtime.tokens import MAX_FIELD_CHARACTERS, Input

Fields = TypeVar("Fields", bound=BaseModel)
OPTIONS = tuple(Options.model_fields)
MISSPELT = ("literal_error", "string_pattern_mismatch")  # faults of fields that do take a text, but not this one
SHOWN_CHARACTERS = 40
INPUTS_ALLOWED = f"a text, or a list of 1 to {MAX_INPUTS} items, each {INPUT_KINDS}"


class KnobTable:
    """The knobs of one bundle.

    Attributes:
        model: the bundle's name, for sentences.
        rows: by knob name; those of the manifest, unless the service is told of other defaults.
    """

    def __init__(self, model: str, rows: Sequence[BundleKnob]) -> None:
        self.model = model
        self.rows = {row.name: row for row in rows}
        self._defaults = {row.name: check_knob(row, _typed(row, row.default)) for row in rows}

    @property
    def names(self) -> list[str]:
        """Names of the knobs, in the manifest's order."""
        return list(self.rows)

    def defaults(self) -> dict[str, KnobValue]:
        """The default of every knob."""
        return dict(self._defaults)

    def exact_by_default(self) -> "KnobTable":
        """The same knobs, with their exact values as defaults."""
        return KnobTable(self.model, [row.model_copy(update={"default": row.exact}) for row in self.rows.values()])

    def exact(self) -> dict[str, KnobValue]:
        """The exact value of every knob."""
        return {name: check_knob(row, _typed(row, row.exact)) for name, row in self.rows.items()}

    def check(self, requested: Mapping[str, object]) -> dict[str, KnobValue]:
        """Checks what a caller set and fills in the rest.

        Args:
            requested: value by knob name, as the caller set it.

        Returns:
            A value for every knob of the bundle: the caller's or the default.

        Raises:
            UnknownField: the bundle has no such knob.
            KnobOutOfRange: wrong type or out of range.
        """
        for name in requested:
            if name not in self.rows:
                raise self._unknown(name)
        values = dict(self._defaults)
        for name in values:
            if name in requested:
                values[name] = check_knob(self.rows[name], requested[name])
        return values

    def _unknown(self, name: str) -> UnknownField:
        has = f"it has {' and '.join(self.names)}" if self.rows else "it has no knobs"
        close = closest(name, self.names)
        hint = f"; did you mean {close[0]}?" if close else ""
        return UnknownField(
            f"model '{self.model}' has no knob {name}: {has}{hint}",
            param=name,
            allowed=", ".join(f"{row.name}: {describe(row)}" for row in self.rows.values()) or "no knob",
        )


def check_values(
    kind: type[Fields], raw: Mapping[str, Any], nullable: Collection[str] = (), prefix: str = ""
) -> Fields:
    """Checks the values of fields by their types and bounds.

    Args:
        kind: has the fields; their descriptions say, up to a colon, what is allowed.
        raw: values by name.
        nullable: fields that may be null.
        prefix: of the object that holds them, with a dot at its end.
    """
    for name, value in raw.items():
        if value is None and name not in nullable:
            raise wrong(prefix + name, "is null", _allowed(kind, name))
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, *inner = first["loc"]
        name = str(place)
        value = raw.get(name)
        if name not in raw:
            state = "is missing"
        elif isinstance(value, list) and inner and isinstance(inner[0], int):
            state = f"has {shown(value[inner[0]])}"
        elif isinstance(value, str) and first["type"] in MISSPELT:
            state = f"is '{printable(value, SHOWN_CHARACTERS)}'"
        else:
            state = f"is {shown(value)}"
        raise wrong(prefix + name, state, _allowed(kind, name)) from None


def check_top_k(labels: int, options: Options) -> None:
    """Refuses to return more labels than a model has."""
    if options.top_k is not None and options.top_k > labels:
        raise wrong("top_k", f"is {shown(options.top_k)}", f"a whole number from 1 to {labels}")


def refuse_of_services(name: str, of_services: Collection[str], known: Sequence[str]) -> None:
    """Refuses a field of a service's requests in a call within its program; `known` are those that it may have.

    Raises:
        UnknownField: it is one of `of_services`.
    """
    if name in of_services:
        allowed = ", ".join(known)
        sentence = f"{name} is a field of a service's requests; here the fields are {allowed}"
        raise UnknownField(sentence, param=name, allowed=allowed)


def check_goals(
    manifest: Manifest, calibration: Calibration | None, goals: Mapping[str, object], requested: Sequence[str]
) -> None:
    """Refuses goals beside knobs, and of a model that was not calibrated.

    Args:
        manifest: of the bundle.
        calibration: of the bundle; None where it was not calibrated.
        goals: that the caller stated.
        requested: knobs that the caller set.

    Raises:
        InvalidRequest: a goal stands beside a knob.
        NotCalibrated: the bundle has no calibration.
    """
    goal = next(iter(goals), None)
    if goal is None:
        return
    if requested:
        raise InvalidRequest(
            f"{goal} stands beside {requested[0]}, but a goal chooses every knob: send either goals or knobs",
            param=goal,
            allowed="no goal beside a knob",
        )
    if calibration is None:
        raise NotCalibrated(
            f"{goal} needs a calibration, and model '{manifest.name}' has none: "
            f"{how_to_calibrate(manifest)}, or set knobs",
            param=goal,
            allowed="a calibrated model",
        )


def parse_inputs(fields: Mapping[str, Any]) -> Iterator[Input]:
    """Checks the types of a body's inputs; their texts and token ids are checked when they are tokenized."""
    raw = fields.get("inputs")
    if isinstance(raw, str):
        yield Input("inputs", text=raw)
        return
    if "inputs" not in fields:
        raise InvalidRequest("inputs is missing", param="inputs", allowed=INPUTS_ALLOWED)
    if not isinstance(raw, list):
        raise wrong("inputs", f"is {shown(raw)}", INPUTS_ALLOWED)
    check_count(len(raw), "inputs")
    for index, value in enumerate(raw):
        yield parse_input(value, f"inputs[{index}]")


def parse_input(value: Any, where: str) -> Input:
    """Checks the type of one input; what it holds is checked when it is tokenized."""
    if isinstance(value, str):
        return Input(where, text=value)
    if isinstance(value, dict):
        return Input.of(value, where)
    raise wrong(where, f"is {shown(value)}", INPUT_KINDS)


def check_count(count: int, param: str, most: int = MAX_INPUTS) -> None:
    """Refuses a request without inputs, or with too many."""
    if not 1 <= count <= most:
        sentence = f"{param} has {count} items, must have 1 to {most}"
        raise InvalidRequest(sentence, param=param, allowed=f"1 to {most} items")


def unknown_field(name: str, known: Sequence[str], prefix: str = "") -> UnknownField:
    """The error for a field that a request cannot have, with the field of the closest name.

    Args:
        name: of the field.
        known: names that there may be.
        prefix: of the object that holds it, with a dot at its end.
    """
    close = closest(name, known)
    hint = f"; did you mean {close[0]}?" if close else f", must be one of {', '.join(known)}"
    short = prefix + name[:MAX_FIELD_CHARACTERS]
    return UnknownField(f"the field '{short}' is unknown{hint}", param=short, allowed=", ".join(known))


def wrong(param: str, state: str, allowed: str, more: str = "") -> InvalidRequest:
    """The error for a field with a wrong value, such as `seed is a text, must be a whole number`; `more` ends it."""
    return InvalidRequest(f"{param} {state}, must be {allowed}{more}", param=param, allowed=allowed)


def _allowed(kind: type[BaseModel], name: str) -> str:
    return str(kind.model_fields[name].description).partition(": ")[0]  # what follows says what it is for


def _typed(row: BundleKnob, value: float) -> KnobValue:
    return int(value) if row.dtype == "int32" else float(value)
