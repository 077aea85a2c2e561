"""The operator's policy for brownouts, as the setting `--brownout-to` spells it."""

from attenuator.errors import KnobOutOfRange
from attenuator.ops import KNOBS
from attenuator.ops.knobs import KnobValue, check_knob


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
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in KNOBS or name in floors:
            raise ValueError(f"'{part[:80]}' must be KNOB=VALUE, each knob once; the knobs are {', '.join(KNOBS)}")
        try:
            floors[name] = check_knob(KNOBS[name], float(value))
        except KnobOutOfRange as error:
            raise ValueError(str(error)) from None
        except ValueError:
            raise ValueError(f"'{part[:80]}' must have a number after the knob's name") from None
    return floors
