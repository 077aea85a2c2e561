"""The operator's policy for brownouts, as the setting `--brownout-to` spells it."""

from attenuator.errors import KnobOutOfRange
from attenuator.ops import KNOBS
from attenuator.ops.knobs import KnobValue, check_knob, read_knob_values


def read_policy(text: str) -> dict[str, KnobValue]:
    """Reads `KNOB=VALUE`, several separated by commas.

    Args:
        text: may be empty, for none.

    Returns:
        The floors by knob.

    Raises:
        ValueError: a part is no such pair, a knob is unknown or there twice, or a value is out of range.
    """
    floors: dict[str, KnobValue] = {}
    for name, value in read_knob_values(text).items():
        if name not in KNOBS:
            raise ValueError(f"'{name[:80]}' is no knob, must be one of: {', '.join(KNOBS)}")
        try:
            floors[name] = check_knob(KNOBS[name], value)
        except KnobOutOfRange as error:
            raise ValueError(str(error)) from None
    return floors
