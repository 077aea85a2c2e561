"""The knobs of a bundle: what a caller may set, all derived from the manifest's knob rows."""

from collections.abc import Mapping, Sequence

from attenuator.bundle import BundleKnob
from attenuator.errors import UnknownField, closest
from attenuator.ops.knobs import KnobValue, check_knob, describe


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


def _typed(row: BundleKnob, value: float) -> KnobValue:
    return int(value) if row.dtype == "int32" else float(value)
