"""Whether a request's predicted cost is within `--max-cost`, and which setting would be."""

from collections.abc import Callable, Sequence
from functools import partial

from attenuator.errors import InvalidRequest
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Encoded, Model

BILLION = 1e9


def check_cost(model: Model, encoded: Sequence[Encoded], knobs: dict[str, KnobValue], max_cost: float | None) -> None:
    """Refuses a request whose predicted cost is too high.

    Args:
        model: the model.
        encoded: the request's inputs.
        knobs: a value for every knob.
        max_cost: billions of multiply-adds for the whole request; None has no limit.

    Raises:
        InvalidRequest: names the cost, the limit, and the cheapest and the most accurate setting that fit.
    """
    if max_cost is None:
        return

    def cost(setting: dict[str, KnobValue]) -> float:
        return sum(model.predict_cost(len(item.token_ids), setting) for item in encoded) / BILLION

    def fits(name: str, value: int) -> bool:
        return cost({**knobs, name: value}) <= max_cost

    predicted = cost(knobs)
    if predicted <= max_cost:
        return
    sentence = f"the predicted cost is {predicted:.3g} billion multiply-adds, must be at most {max_cost:g}"
    for name, row in model.knobs.rows.items():
        if row.dtype != "int32" or row.accuracy != "rises":
            continue  # the predicted cost does not fall with the knob
        low = int(row.low) + (int(row.low) == int(row.exact))
        best = _largest(low, int(row.high), partial(fits, name))
        if best is not None:
            raise InvalidRequest(
                f"{sentence}: the cheapest setting that fits is {name} {low}, the most accurate {name} {best}",
                param=name,
                allowed=f"{name} from {low} to {best}",
            )
    raise InvalidRequest(
        f"{sentence}: no setting fits, send fewer or shorter inputs",
        param="inputs",
        allowed=f"at most {max_cost:g} billion multiply-adds",
    )


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """Largest value from low to high that fits, where all below it fit too."""
    if not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
