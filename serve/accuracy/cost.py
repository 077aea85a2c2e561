"""The predicted cost of a request, and which settings are within `--max-cost`."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from attenuator.bundle import BundleKnob
from attenuator.errors import InvalidRequest
from attenuator.ops.knobs import DEFAULT_SEED, Knobs, KnobValue
from attenuator.runtime import Model, Row
from attenuator.runtime.explaining import cost_of_rows
from attenuator.runtime.sampling import DRAWS, draw_seeds, draws_for

BILLION = 1e9
FLOAT_STEPS = 100  # at most, about
GROUPS = 16  # of inputs of like length


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a request: its inputs, and the draws for their standard errors where these are explained.

    Draws run beside the inputs. Where a request escalates, they run at its end, and each step has to find room.

    Attributes:
        model: which runs it.
        tokens: length of each input.
        explained: whether draws run beside the inputs.
        seed: of the inputs.
        usual_seed: whether that is the service's own, whose random numbers do not count in the limit on cost.
    """

    model: Model
    tokens: Sequence[int]
    explained: bool = False
    seed: int = DEFAULT_SEED
    usual_seed: bool = True

    def coarse(self) -> "Work":
        """A bound that is quick to predict at many settings: inputs of like length as the longest of them."""
        ordered = sorted(self.tokens)
        size = math.ceil(len(ordered) / GROUPS)
        groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        return replace(self, tokens=[group[-1] for group in groups for _ in group])

    def draws(self, knobs: Knobs) -> list[tuple[list[int], Knobs]]:
        """The draws that run with the inputs at a setting: lengths, and the setting that they run at."""
        if not self.explained:
            return []
        parts: dict[tuple[tuple[str, KnobValue], ...], list[int]] = {}
        for length, count in Counter(self.tokens).items():
            draws = draws_for(self.model.manifest, self.model.knobs, knobs, length)
            if draws is not None:
                parts.setdefault(tuple(draws.knobs.items()), []).extend([length] * count * DRAWS)
        return [(lengths, dict(setting)) for setting, lengths in parts.items()]

    def seeds(self, knobs: Knobs) -> list[tuple[int, Knobs]]:
        """The seeds of the answers and of their draws at a setting, each with the setting that it is used at."""
        seeds: list[tuple[int, Knobs]] = [(self.seed, knobs)]
        for _, setting in self.draws(knobs):
            seeds += [(seed, setting) for seed in draw_seeds(self.seed)]
        return seeds

    def cost(self, knobs: Knobs) -> float:
        """Predicted cost at a setting, in billions of multiply-adds."""
        draws = sum(self.model.total_cost(lengths, setting) for lengths, setting in self.draws(knobs))
        return self._inputs_cost(knobs) + (draws + self._seed_cost(knobs)) / BILLION

    def most_costs(self, knobs: Knobs) -> list[float]:
        """Predicted cost of the dearest inputs together at a setting, by how many they are, from none to all."""
        costs = sorted((self.model.predict_cost(each, knobs) / BILLION for each in self.tokens), reverse=True)
        return list(accumulate(costs, initial=0.0))

    def most_cost(self, knobs: Knobs) -> float:
        """Upper bound of `cost` that rises with the accuracy, as `cost` does not everywhere.

        A setting with many samples draws with a fourth of them, one with few draws with all. So the cost itself falls
        where a knob passes from few to many.
        """
        extra = self._seed_cost(knobs)
        if self.draws(knobs):
            extra = DRAWS * self.model.total_cost(self.tokens, knobs)
            extra += 0.0 if self.usual_seed else (1 + DRAWS) * self.model.drawn(knobs).work
        return self._inputs_cost(knobs) + extra / BILLION

    def check_cost(self, knobs: Knobs, max_cost: float | None) -> None:
        """Refuses a request whose predicted cost is above `max_cost` billions of multiply-adds; None has no limit.

        Raises:
            InvalidRequest: names the cost, the limit, and the cheapest and the most accurate setting between which all
                fit.
        """
        if max_cost is None or (predicted := self.cost(knobs)) <= max_cost:
            return
        sentence = f"the predicted cost is {predicted:.3g} billion multiply-adds, must be at most {max_cost:g}"
        fitting = fitting_settings(self.most_cost, knobs, list(self.model.knobs.rows.values()), max_cost)
        if fitting is None:
            raise InvalidRequest(
                f"{sentence}: no setting fits, send fewer or shorter inputs",
                param="inputs",
                allowed=f"at most {max_cost:g} billion multiply-adds",
            )
        name, others = fitting.knob, "".join(f" and {other} {value:g}" for other, value in fitting.others.items())
        allowed = [f"from {min(fitting.sampled):g} to {max(fitting.sampled):g}"] if fitting.sampled else []
        if fitting.best == self.model.knobs.rows[name].exact:
            allowed.insert(0, f"{fitting.best:g} (exact)")
        raise InvalidRequest(
            f"{sentence}: the cheapest setting that fits is {name} {fitting.cheapest:g}{others}, the most accurate "
            f"{name} {fitting.best:g}{others}",
            param=name,
            allowed=f"{name} {' or '.join(allowed)}" + (f" with{others.removeprefix(' and')}" if others else ""),
        )

    def cost_besides(self, rows: Sequence[Row], spent: float) -> float:
        """Predicted cost of further rows together with `spent`, the multiply-adds that ran, in billions."""
        drawing = 0.0 if self.usual_seed else sum(self.model.drawn(knobs).work for _, knobs in seeds_of(rows))
        return (spent + cost_of_rows(self.model, rows) + drawing) / BILLION

    def _inputs_cost(self, knobs: Knobs) -> float:
        return self.model.total_cost(self.tokens, knobs) / BILLION

    def _seed_cost(self, knobs: Knobs) -> float:
        """Of what is drawn for seeds other than the service's own, be it still kept from a request before or not.

        Whether a request is within the limit must not depend on the requests before it.
        """
        return 0.0 if self.usual_seed else sum(self.model.drawn(setting).work for _, setting in self.seeds(knobs))


def seeds_of(rows: Sequence[Row]) -> list[tuple[int, Knobs]]:
    """The seeds of rows, each with the setting that it is used at."""
    return list({(row.seed, id(row.knobs)): (row.seed, row.knobs) for row in rows}.values())


@dataclass(frozen=True, slots=True)
class Fitting:
    """Settings that fit a limit: one knob varies, the request's others stay.

    Attributes:
        knob: the one that varies.
        cheapest: its cheapest value.
        best: its most accurate value that fits: the exact one, where that fits.
        sampled: its cheapest and its most accurate value that fit, the exact one aside; empty where none does.
        others: knobs that have to change too, each at its cheapest value.
    """

    knob: str
    cheapest: KnobValue
    best: KnobValue
    sampled: tuple[KnobValue, ...]
    others: dict[str, KnobValue]


def fitting_settings(
    cost: Callable[[Mapping[str, KnobValue]], float],
    knobs: Mapping[str, KnobValue],
    rows: list[BundleKnob],
    max_cost: float,
) -> Fitting | None:
    """The settings that fit, by the knob that saves most; others change only where that one alone does not do.

    A knob's exact value may be its cheapest: on a short text, or where a seed's draws take more than exact attention.

    Gives None where not even the cheapest value of every knob fits.
    """
    values = {row.name: cheapest_first(row) for row in rows}
    exact: dict[str, KnobValue] = {row.name: int(row.exact) if row.dtype == "int32" else row.exact for row in rows}

    def cost_at(name: str, value: KnobValue) -> float:
        return cost({**knobs, name: value})

    cheapest = {name: min(each[0], exact[name], key=partial(cost_at, name)) for name, each in values.items() if each}
    values = {name: values[name] for name in cheapest}
    names = sorted(values, key=lambda name: cost_at(name, cheapest[name]))
    setting, others = dict(knobs), {}
    for name in names:
        if cost({**setting, name: cheapest[name]}) < cost(setting):
            others[name] = setting[name] = cheapest[name]
        if cost(setting) <= max_cost:
            break
    if not others or cost(setting) > max_cost:
        return None
    [knob, *_] = names
    others.pop(knob, None)
    # Whatever is cheaper than a setting that fits, fits too; the exact value has no place in that order.
    fitting = bisect_left(values[knob], True, key=lambda value: cost({**setting, knob: value}) > max_cost)
    sampled: tuple[KnobValue, ...] = (values[knob][0], values[knob][fitting - 1]) if fitting else ()
    if cost({**setting, knob: exact[knob]}) <= max_cost:
        return Fitting(knob, cheapest[knob], exact[knob], sampled, others)
    return Fitting(knob, sampled[0], sampled[1], sampled, others)


def cheapest_first(row: BundleKnob) -> list[KnobValue]:
    """Settings of a knob, the exact value aside: accuracy and cost rise along the list."""
    if row.dtype == "int32":
        values: list[KnobValue] = [value for value in range(int(row.low), int(row.high) + 1) if value != row.exact]
    else:
        if row.low == row.high:
            return [] if row.low == row.exact else [row.low]
        step = 10 ** math.ceil(math.log10((row.high - row.low) / FLOAT_STEPS))  # so that values have few digits
        multiples = range(math.ceil(row.low / step), math.floor(row.high / step) + 1)
        grid = {row.low, row.high, *(round(each * step, 6) for each in multiples)}
        values = sorted(grid - {row.exact})
    return values if row.accuracy == "rises" else values[::-1]
