"""Whether a request's predicted cost is within `--max-cost`, and which setting would be."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

from attenuator.bundle import BundleKnob
from attenuator.errors import InvalidRequest
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Encoded, Model

BILLION = 1e9
FLOAT_STEPS = 100


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

    predicted = cost(knobs)
    if predicted <= max_cost:
        return
    sentence = f"the predicted cost is {predicted:.3g} billion multiply-adds, must be at most {max_cost:g}"
    for name, row in model.knobs.rows.items():
        settings = cheapest_first(row)
        # Whatever is cheaper than a setting that fits, fits too.
        count = bisect_left(settings, True, key=partial(exceeds, cost, knobs, name, max_cost))
        if count:
            cheapest, best = settings[0], settings[count - 1]
            raise InvalidRequest(
                f"{sentence}: the cheapest setting that fits is {name} {cheapest:g}, the most accurate {name} {best:g}",
                param=name,
                allowed=f"{name} from {min(cheapest, best):g} to {max(cheapest, best):g}",
            )
    raise InvalidRequest(
        f"{sentence}: no setting fits, send fewer or shorter inputs",
        param="inputs",
        allowed=f"at most {max_cost:g} billion multiply-adds",
    )


def exceeds(
    cost: Callable[[dict[str, KnobValue]], float],
    knobs: dict[str, KnobValue],
    name: str,
    max_cost: float,
    value: KnobValue,
) -> bool:
    """Whether a request would be too expensive with one knob set to a value."""
    return cost({**knobs, name: value}) > max_cost


def cheapest_first(row: BundleKnob) -> list[KnobValue]:
    """Settings of a knob, the exact value aside: accuracy and cost rise along the list."""
    if row.dtype == "int32":
        values: list[KnobValue] = [value for value in range(int(row.low), int(row.high) + 1) if value != row.exact]
    else:
        grid = (row.low + (row.high - row.low) * step / FLOAT_STEPS for step in range(FLOAT_STEPS + 1))
        values = [value for value in (round(value, 6) for value in grid) if value != row.exact]
    return values if row.accuracy == "rises" else values[::-1]
