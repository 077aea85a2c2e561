"""Modelled time of a whole model at a length, from which `inspect` says what a knob can win.

Time is counted work times ns per unit; `ops/cost.py` has the rates and says how good they are. Only ratios are shown,
and always as modelled: `attenuator inspect --measure` asks the clock instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attenuator.ops import OPERATORS
from attenuator.ops.cost import NS_PER_DENSE_MAC, NS_PER_NODE, NS_PER_VALUE, NodeShape
from attenuator.runtime.work import COSTS, Stage, Work

LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to run a model.

    Attributes:
        knobs: value by knob name; a knob that is absent has its exact value.
        softmax: keys of the operators that are replaced by exact softmax attention, or left out where they are no
            attention.
    """

    knobs: Mapping[str, float]
    softmax: frozenset[str] = frozenset()


# Exact softmax attention over every token; what a user asks for as softmax attention is that already.
EXACT = Setting({}, frozenset(operator.key for operator in OPERATORS if not operator.asked_as))


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Modelled time of one sequence through a model, on one core, in ns.

    Attributes:
        work: the model's work.
        rounded: whether its linear layers are, so that they take less time than the rates say.
    """

    work: Work
    rounded: bool = False

    def ns(self, tokens: int, setting: Setting) -> float:
        """The whole model in some setting."""
        staged = zip(self.work.stages, self.work.rows(tokens, setting.knobs), strict=True)
        stages = sum(_stage_ns(stage, rows, setting) for stage, rows in staged)
        return NS_PER_NODE * self.work.launches + NS_PER_DENSE_MAC * self.work.sequence_macs + stages

    def exact_ns(self, tokens: int) -> float:
        """The whole model with exact softmax attention over every token."""
        return self.ns(tokens, EXACT)

    def attention_ns(self, tokens: int) -> float:
        """All attention nodes, as exact softmax attention over every token, value projections not counted."""
        nodes = sum(_node_ns(node, tokens, EXACT) for node in self.work.operators)
        return nodes - NS_PER_DENSE_MAC * self.work.projection_macs(tokens)

    def attention_share(self, tokens: int) -> float:
        """Share of the exact model's time that attention takes, value projections not counted."""
        return self.attention_ns(tokens) / self.exact_ns(tokens)

    def free_attention(self, tokens: int) -> float:
        """Speed-up of the whole model if attention cost nothing."""
        return self.exact_ns(tokens) / (self.exact_ns(tokens) - self.attention_ns(tokens))

    def free_part(self, operator: str, tokens: int, than: Setting = EXACT) -> float:
        """Speed-up of the whole model if the work that an operator's knobs can save cost nothing: an upper bound.

        Args:
            operator: its key.
            tokens: the length.
            than: what it is compared with; exact softmax attention over every token.
        """
        ns, cost = self.ns(tokens, than), COSTS[operator]
        spared = 0.0
        selected: list[bool] = []  # by stage, whether the operator is on the way to it
        for stage, rows in zip(self.work.stages, self.work.rows(tokens, than.knobs), strict=True):
            own = stage.selection is not None and stage.selection.operator == operator
            selected.append(own or (bool(selected) and selected[stage.source]))
            if cost.part != "rows":
                spared += sum(cost.spared_ns(node, rows) for node in stage.operators if node.operator == operator)
            elif selected[-1]:
                spared += _stage_ns(stage, rows, than) - _stage_ns(stage, 1, than)
        return ns / (ns - spared)

    def layer_share(self, operator: str, tokens: int) -> float | None:
        """Share of a full layer's multiply-adds that the operator's knobs can spare.

        Of a value projection it is d^2 / (12 d^2 + 2 n d) in BERT, counted as Kim and Ko (2022) count.

        Args:
            operator: its key.
            tokens: the length.

        Returns:
            The share, or None where the model has no full layer of the operator.
        """
        nodes = [node for node in self.work.attention if node.operator == operator and not node.first_only]
        if not nodes or not self.work.layer_macs:
            return None
        node = nodes[0]
        layer = tokens * self.work.layer_macs + node.projection_macs(tokens) + node.attention_macs(tokens)
        return COSTS[operator].spared_macs(node, tokens) / layer

    def speedup(self, tokens: int, knobs: Mapping[str, float], than: Setting = EXACT) -> float:
        """Speed-up of the whole model at some knobs; below 1 it is slower.

        Args:
            tokens: the length.
            knobs: value by knob name.
            than: what it is compared with; exact softmax attention over every token.
        """
        return self.ns(tokens, than) / self.ns(tokens, Setting(knobs))

    def gain(self, tokens: int, knobs: Mapping[str, float]) -> float:
        """Speed-up of the whole model at some knobs over its exact setting."""
        return self.speedup(tokens, knobs, Setting({}))

    def most(self, tokens: int, knobs: Mapping[str, float]) -> float:
        """The most that the whole model can win at some knobs over its exact setting.

        What a knob spares that depends on the text is taken to cost nothing, and rounded linear layers, whose rates are
        those of fp32 here, may leave attention twice the share.

        Args:
            tokens: the length.
            knobs: value by knob name.
        """
        least = self.ns(tokens, Setting(knobs))
        for stage, rows in zip(self.work.stages, self.work.rows(tokens, knobs), strict=True):
            for node in stage.operators:
                cost = COSTS[node.operator]
                now, exact = cost.ns(node, rows, knobs), cost.ns(node, rows, {})
                if cost.follows_text and now != exact:
                    least += exact - cost.spared_ns(node, rows) - now
        return self.ns(tokens, Setting({})) / least * (2 if self.rounded else 1)

    def crossover(self, knobs: Mapping[str, float], than: Setting = EXACT) -> int | None:
        """Shortest length from which the model at some knobs is faster.

        Args:
            knobs: value by knob name.
            than: what it is compared with; exact softmax attention over every token.

        Returns:
            Tokens, or None where it is slower at every length up to `LONGEST`.
        """
        low, high = 1, LONGEST
        if self.speedup(high, knobs, than) <= 1:
            return None
        while low < high:
            middle = (low + high) // 2
            if self.speedup(middle, knobs, than) > 1:
                high = middle
            else:
                low = middle + 1
        return low


def _stage_ns(stage: Stage, rows: int, setting: Setting) -> float:
    """Everything that is computed of as many rows, linear layers of whole sequences aside."""
    ns = rows * (NS_PER_DENSE_MAC * stage.token_macs + NS_PER_VALUE * stage.token_values)
    for node in stage.operators:
        ns += _node_ns(node, rows, setting)
    return ns


def _node_ns(node: NodeShape, rows: int, setting: Setting) -> float:
    """One node of the domain."""
    exact = node.operator in setting.softmax
    return node.exact_ns(rows) if exact else COSTS[node.operator].ns(node, rows, setting.knobs)
