"""What a knob can win for a model at a length: a cost model on the counted work.

Time is counted work times ns per unit. The rates below were fitted once, on one machine, to times of this project's
kernels (`benchmarks/cost_rates.py`: off by 5 % at the median, most where a sequence is short). Ratios carry over to
other machines better than times do, so only ratios are shown, and always as modelled. `attenuator inspect --measure`
asks the clock instead.
"""

from dataclasses import dataclass
from typing import NamedTuple

from attenuator.runtime.work import Work

LONGEST = 1 << 20


class Units(NamedTuple):
    """Counted work by kind, and, where named so, ns per unit of each kind.

    Attributes:
        dense: multiply-adds in linear layers.
        values: values that nodes other than linear layers and attention write.
        softmax: multiply-adds in exact attention.
        hashing: int8 multiply-adds of hashing.
        codes: hash codes, each the address of a bucket.
        buckets: values added to, or read from, buckets.
        pairs: codes of a query compared with codes of a key.
    """

    dense: float = 0.0
    values: float = 0.0
    softmax: float = 0.0
    hashing: float = 0.0
    codes: float = 0.0
    buckets: float = 0.0
    pairs: float = 0.0

    def times(self, ns_per_unit: "Units") -> float:
        """The time that this work takes, in ns."""
        return sum(count * ns for count, ns in zip(self, ns_per_unit, strict=True))

    def plus(self, other: "Units") -> "Units":
        """Both works, one after the other."""
        return Units(*(a + b for a, b in zip(self, other, strict=True)))


RATES = Units(dense=0.00981, values=0.586, softmax=0.00973, hashing=0.00148, codes=0.645, buckets=0.0593, pairs=0.0226)
RATES_MACHINE = "one core of an AMD EPYC (AVX-512, VNNI)"


@dataclass(frozen=True, slots=True)
class CostModel:
    """Modelled time of one sequence through a model, on one core, in ns.

    Attributes:
        work: the model's work.
        rates: ns per unit of work.
    """

    work: Work
    rates: Units = RATES

    def rest(self, tokens: int) -> Units:
        """Everything that no knob touches."""
        fixed_value_macs = self.work.value_macs(tokens) - self.work.value_macs(tokens, sparable=True)
        dense = self.work.dense_macs(tokens) + fixed_value_macs
        return Units(dense=dense, values=tokens * self.work.token_values)

    def softmax(self, tokens: int) -> Units:
        """All attention nodes, as exact softmax attention."""
        return Units(softmax=self.work.softmax_macs(tokens))

    def projection(self, tokens: int) -> Units:
        """The value projections that `alpha` can spare, computed exactly."""
        return Units(dense=self.work.value_macs(tokens, sparable=True))

    def yoso(self, tokens: int, num_hashes: int) -> Units:
        """All attention nodes as YOSO attention, each the quicker way: by hash tables, or by counting collisions."""
        ways = (self.yoso_tables(tokens, num_hashes), self.yoso_counts(tokens, num_hashes))
        return min(ways, key=lambda units: units.times(self.rates))

    def yoso_tables(self, tokens: int, num_hashes: int) -> Units:
        """Hash, scatter into tables, gather: linear in length (Zeng et al. 2021, section 3.2)."""
        total = Units()
        for node in self.work.attention:
            codes = num_hashes * node.num_heads * (tokens + node.queries(tokens))
            hashing = codes * node.hash_bits * node.head_dim
            total = total.plus(Units(hashing=hashing, codes=codes, buckets=codes * node.value_dim))
        return total

    def yoso_counts(self, tokens: int, num_hashes: int) -> Units:
        """Hash, count the collisions of every pair, multiply counts by values: quicker for short sequences.

        The product of counts and values was too small to be told from the comparisons when the rates were fitted.
        """
        total = Units()
        for node in self.work.attention:
            hashing = num_hashes * node.num_heads * (tokens + node.queries(tokens)) * node.hash_bits * node.head_dim
            pairs = num_hashes * node.num_heads * node.queries(tokens) * tokens
            total = total.plus(Units(hashing=hashing, pairs=pairs))
        return total

    def softmax_ns(self, tokens: int) -> float:
        """Time of all attention nodes, as exact softmax attention."""
        return self.softmax(tokens).times(self.rates)

    def yoso_ns(self, tokens: int, num_hashes: int) -> float:
        """Time of all attention nodes, as YOSO attention at `num_hashes`."""
        return self.yoso(tokens, num_hashes).times(self.rates)

    def projection_ns(self, tokens: int) -> float:
        """Time of the value projections that `alpha` can spare."""
        return self.projection(tokens).times(self.rates)

    def exact_ns(self, tokens: int) -> float:
        """Time of the whole model with exact softmax attention."""
        return self.rest(tokens).times(self.rates) + self.projection_ns(tokens) + self.softmax_ns(tokens)

    def attention_share(self, tokens: int) -> float:
        """Share of the exact model's time that attention takes, value projections not counted."""
        return self.softmax_ns(tokens) / self.exact_ns(tokens)

    def free_attention(self, tokens: int) -> float:
        """Speed-up of the whole model if attention cost nothing: no `num_hashes` can win more."""
        return self.exact_ns(tokens) / (self.exact_ns(tokens) - self.softmax_ns(tokens))

    def free_projection(self, tokens: int) -> float:
        """Speed-up of the whole model if value projections cost nothing: no `alpha` can win more."""
        return self.exact_ns(tokens) / (self.exact_ns(tokens) - self.projection_ns(tokens))

    def yoso_speedup(self, tokens: int, num_hashes: int) -> float:
        """Speed-up of the whole model at `num_hashes` over exact softmax attention; below 1 it is slower."""
        exact = self.exact_ns(tokens)
        return exact / (exact - self.softmax_ns(tokens) + self.yoso_ns(tokens, num_hashes))

    def crossover(self, num_hashes: int) -> int | None:
        """Shortest length from which YOSO at `num_hashes` is faster than exact softmax attention.

        Returns:
            Tokens, or None where that is so at no length that counts.
        """
        low, high = 1, LONGEST
        if self.yoso_ns(high, num_hashes) >= self.softmax_ns(high):
            return None
        while low < high:
            middle = (low + high) // 2
            if self.yoso_ns(middle, num_hashes) < self.softmax_ns(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def layer_projection_share(self, tokens: int) -> float | None:
        """Share of a full layer's multiply-adds that its value projection takes: d^2 / (12 d^2 + 2 n d) in BERT.

        Counted as Kim and Ko (2022) count, in multiply-adds rather than time; None without a full MCA layer.
        """
        nodes = [node for node in self.work.attention if node.channels]
        if not nodes or not self.work.layer_macs:
            return None
        node = nodes[0]
        value = node.channels * node.num_heads * node.value_dim
        keys = min(tokens, 2 * node.window + 1) if node.window else tokens
        return value / (self.work.layer_macs + value + keys * node.num_heads * (node.head_dim + node.value_dim))
