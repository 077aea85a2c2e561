"""What an operator costs, and what its knobs can win. Each `<operator>/cost.py` holds one `COST`.

Two predictions follow from it. The service schedules by `work`, in multiply-adds. `attenuator inspect` shows `ns`, the
modelled time on one core, as ratios, which carry over to other machines better than times do; it also prints `verdict`.
The rates below, and those in an operator's own file, were fitted once to times of this project's kernels
(`benchmarks/operators/cost_rates.py`: off by 5 % at the median, most where a sequence is short). Standard library only.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from attenuator.ops import has_part, part
from attenuator.ops.spec import Operator

RATES_MACHINE = "one core of an AMD EPYC (AVX-512, VNNI)"
NS_PER_DENSE_MAC = 0.00981  # of a linear layer
NS_PER_VALUE = 0.586  # that a node other than linear layers and operators writes
NS_PER_ATTENTION_MAC = 0.00973  # of exact softmax attention
NS_PER_NODE = 900.0  # of running a node of the graph, whatever its size: what a text of one token takes, by nodes

Part = Literal["attention", "projection", "rows"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a run draws for a seed and keeps for the runs that follow, as long as there is room.

    Attributes:
        work: of drawing it, in multiply-adds.
        bytes: that it takes.
    """

    work: float = 0.0
    bytes: int = 0

    def __add__(self, other: "Drawn") -> "Drawn":
        """Both."""
        return Drawn(self.work + other.work, self.bytes + other.bytes)


NOTHING_DRAWN = Drawn()
KEPT_BYTES = 64 << 20  # of what was drawn: each cache in C++ has as many for the whole process


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What the work of a node depends on, beside the sequence and the knobs.

    Attributes:
        operator: the operator's key.
        num_heads: attention heads; 0 if the node is not attention.
        head_dim: channels of a head's queries and keys.
        value_dim: channels of a head's values.
        channels: width of the rows before a value projection inside the node, else 0; of a node that is not attention,
            width of its first input's rows, 0 where it has no such rows.
        attributes: the node's attributes, the spec's defaults filled in.
        layer: layers of attention before it in the graph.
        tables: shapes of its inputs that are weights, by the names of the spec.
        half: whether its value projection's weight has 16 bits, as its rows then have.
    """

    operator: str
    num_heads: int
    head_dim: int
    value_dim: int
    channels: int
    attributes: Mapping[str, int | float | str]
    layer: int = 0
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    half: bool = False

    @property
    def window(self) -> int:
        """Keys on either side, 0 for all."""
        return int(self.attributes.get("window", 0))

    @property
    def global_tokens(self) -> int:
        """1 where, under a window, the first token sees and is seen by all."""
        return int(self.attributes.get("global_tokens", 0)) if self.window else 0

    @property
    def first_only(self) -> bool:
        """Whether only the first token of each sequence is a query."""
        return self.attributes.get("queries") == "first"

    def keys(self, tokens: int) -> int:
        """Most keys that a row sees in a sequence, a global token's own row aside."""
        return min(tokens, 2 * self.window + 1 + self.global_tokens) if self.window else tokens

    def queries(self, tokens: int) -> int:
        """Rows that are computed in a sequence."""
        return 1 if self.first_only else tokens

    def attention_macs(self, tokens: int) -> int:
        """Multiply-adds of exact softmax attention: scores, and their product with the values."""
        keys = self.keys(tokens)
        scores = self.queries(tokens) * keys + self.global_tokens * (tokens - keys)
        return scores * self.num_heads * (self.head_dim + self.value_dim)

    def projection_macs(self, tokens: int) -> int:
        """Multiply-adds of an exact value projection inside the node, 0 where a linear layer before it has them.

        With one query row per sequence the node computes (A X) W_v, which is cheaper.
        """
        if self.first_only:
            return self.channels * self.num_heads * (tokens + self.value_dim)
        return tokens * self.channels * self.num_heads * self.value_dim

    def exact_ns(self, tokens: int) -> float:
        """Modelled time as exact softmax attention, a value projection inside the node included."""
        attention = NS_PER_ATTENTION_MAC * self.attention_macs(tokens)
        return attention + NS_PER_DENSE_MAC * self.projection_macs(tokens)


@dataclass(frozen=True, slots=True)
class LengthFacts:
    """What the time model says about a whole model at one length.

    Attributes:
        tokens: the length.
        attention_share: share of the exact model's time that attention takes.
        free_attention: speed-up of the whole model if attention cost nothing.
        layer_share: share of a full layer's multiply-adds that `OperatorCost.part` takes; None without a full layer.
        free_part: speed-up of the whole model if all that the knobs can spare cost nothing.
        speedup: speed-up of the whole model by the operator's knobs at the bundle's defaults, over their exact values
            (for what replaces attention: over exact softmax attention); all other knobs at their defaults.
    """

    tokens: int
    attention_share: float
    free_attention: float
    layer_share: float | None
    free_part: float
    speedup: float


class KnobValues(Protocol):
    """What a verdict needs to know of a knob: a bundle's row, or an operator's `Knob`."""

    @property
    def name(self) -> str:
        """The word for it."""

    @property
    def default(self) -> float:
        """Its value where a caller sets none."""

    @property
    def exact(self) -> float:
        """Its exact value."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is modelled for one operator of a bundle.

    Attributes:
        operator: the operator.
        knobs: its knobs, as the bundle has them.
        max_tokens: the longest sequence that the bundle takes.
        lengths: at least one length, ascending.
        crossover: tokens from which the operator at the defaults is faster than what `LengthFacts.speedup` is over, or
            None.
    """

    operator: Operator
    knobs: Sequence[KnobValues]
    max_tokens: int
    lengths: Sequence[LengthFacts]
    crossover: int | None

    @property
    def setting(self) -> str:
        """The operator at the defaults, such as `keep 0.5`; without knobs its name."""
        return ", ".join(f"{knob.name} {knob.default:g}" for knob in self.knobs) or self.operator.name


class OperatorCost(ABC):
    """What one operator costs.

    Only `work` has to be written; the rest suits an operator that replaces exact softmax attention and whose work
    follows from shapes and knobs.

    Attributes:
        part: what its knobs can spare: exact attention, the value projection inside the node, or whatever is computed
            of rows that do not go on.
        follows_text: whether the work depends on the text, so that no speed-up can be modelled.
    """

    part: Part = "attention"
    follows_text: bool = False

    @abstractmethod
    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds of the node for one sequence, or their equivalent; includes a value projection inside the node.

        Args:
            node: its shape.
            tokens: length of the sequence.
            knobs: value by knob name; a knob that is absent has its exact value.
        """

    def drawn(self, node: NodeShape, knobs: Mapping[str, float]) -> Drawn:
        """What the node draws once for a seed, whatever the sequences; not part of `work`.

        Args:
            node: its shape.
            knobs: value by knob name; a knob that is absent has its exact value.
        """
        return NOTHING_DRAWN

    def ns(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Modelled time of the same; as a rule what exact attention takes for as many multiply-adds."""
        return NS_PER_ATTENTION_MAC * self.work(node, tokens, knobs)

    def rows(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> int:
        """Rows of a sequence that go on after the node: all of them, unless the operator selects.

        Args:
            node: its shape.
            tokens: rows of the sequence before it.
            knobs: value by knob name; a knob that is absent has its exact value.
        """
        return tokens

    def draws(self, attributes: Mapping[str, float | str], tokens: int, knobs: Mapping[str, float]) -> bool:
        """Whether anything is random about a sequence at knobs that are not exact.

        Args:
            attributes: those that the nodes have in common, the spec's defaults filled in for all others.
            tokens: length of the sequence.
            knobs: value by knob name.
        """
        return True

    def spared_macs(self, node: NodeShape, tokens: int) -> int:
        """Multiply-adds of the exact node that the knobs can spare at most; rows are spared in other nodes."""
        if self.part == "rows":
            return 0
        return node.attention_macs(tokens) if self.part == "attention" else node.projection_macs(tokens)

    def spared_ns(self, node: NodeShape, tokens: int) -> float:
        """Modelled time of the same."""
        rate = NS_PER_ATTENTION_MAC if self.part == "attention" else NS_PER_DENSE_MAC
        return rate * self.spared_macs(node, tokens)

    def summary(self, nodes: Sequence[NodeShape]) -> dict[str, str]:
        """How a model uses the operator, for `attenuator inspect`: text by heading.

        Args:
            nodes: all nodes of the domain, each operator's own in the graph's order.
        """
        return {}

    def verdict(self, outlook: Outlook) -> list[str]:
        """Sentences that say whether the operator is worth using, from the modelled figures.

        Args:
            outlook: the figures.
        """
        longest, start = outlook.lengths[-1], outlook.crossover
        if start is None or start > outlook.max_tokens:
            first = (
                f"At {outlook.setting} exact softmax attention is faster at every length this model takes: exact "
                "attention is the better choice."
            )
        else:
            first = (
                f"{outlook.setting} overtakes exact softmax attention at about {start} tokens; for shorter texts exact "
                "attention is the better choice: faster, and without approximation error."
            )
        return [
            first,
            f"At {longest.tokens} tokens attention is {longest.attention_share:.0%} of an exact model's time: free "
            f"attention would win {longest.free_attention:.1f}x, {outlook.setting} wins {longest.speedup:.1f}x.",
        ]

    def measured_verdict(self, knob: str, gains: Mapping[float, Mapping[int, float]], limit: float) -> list[str]:
        """The same sentences from measured times.

        Args:
            knob: its name.
            gains: speed-up of the whole model over exact softmax attention, by value of the knob, by length in tokens;
                every value has the same lengths, ascending.
            limit: the largest `LengthFacts.free_part`.
        """
        starts = []
        for value, by_length in gains.items():
            slower = [tokens for tokens, gain in by_length.items() if gain <= 1]
            start = next((tokens for tokens in by_length if tokens > max(slower, default=0)), None)
            starts.append(f"{value:g} " + ("at none of these lengths" if start is None else f"from {start} tokens"))
        return [
            f"Measured here, {knob} is faster than exact softmax attention: {', '.join(starts)}; elsewhere exact "
            "attention is the better choice."
        ]


class NegligibleCost(OperatorCost):
    """An operator whose work does not count beside linear layers and attention."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Nothing."""
        return 0.0


def costs_of(operators: Iterable[Operator]) -> dict[str, OperatorCost]:
    """The cost of each operator, by key.

    Raises:
        ImportError: an operator has none.
    """
    costs = {}
    for operator in operators:
        cost = getattr(part(operator.key, "cost"), "COST", None) if has_part(operator.key, "cost") else None
        if not isinstance(cost, OperatorCost):
            raise ImportError(
                f"the operator {operator.name} has no cost: cost.py in its folder must set COST to an OperatorCost"
            )
        costs[operator.key] = cost
    return costs
