"""What a knob can win for a model at a length: a cost model on the counted work.

Time is work divided by rates. The rates below were measured once, on one machine, with this project's kernels; ratios
carry over to other machines far better than times do, so only ratios are shown, and always as modelled.
`attenuator inspect --measure` replaces the model by the clock.
"""

from dataclasses import dataclass

from attenuator.clients.work import AttentionNode, Work

LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast one core does each kind of work.

    Attributes:
        machine: where that was measured.
        dense: multiply-adds per ns in linear layers.
        softmax: multiply-adds per ns in exact attention.
        value_ns: ns per value that other nodes write.
        hash: int8 multiply-adds per ns in hashing.
        bucket_ns: ns per value added to, or read from, a bucket of a hash table.
        clear_ns: ns per value of a cleared hash table.
    """

    machine: str
    dense: float
    softmax: float
    value_ns: float
    hash: float
    bucket_ns: float
    clear_ns: float


RATES = Rates(
    machine="one core of an AVX-512 Xeon with AMX",
    dense=100.0,
    softmax=70.0,
    value_ns=0.5,
    hash=250.0,
    bucket_ns=0.05,
    clear_ns=0.03,
)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Modelled time of one sequence through a model, in ns.

    Attributes:
        work: the model's work.
        rates: the machine's rates.
    """

    work: Work
    rates: Rates = RATES

    def rest_ns(self, tokens: int) -> float:
        """Everything that no knob touches."""
        dense = (
            self.work.dense_macs(tokens) + self.work.value_macs(tokens) - self.work.value_macs(tokens, sparable=True)
        )
        return dense / self.rates.dense + tokens * self.work.token_values * self.rates.value_ns

    def softmax_ns(self, tokens: int) -> float:
        """All attention nodes, as exact softmax attention."""
        return self.work.softmax_macs(tokens) / self.rates.softmax

    def projection_ns(self, tokens: int) -> float:
        """The value projections that `alpha` can spare, computed exactly."""
        return self.work.value_macs(tokens, sparable=True) / self.rates.dense

    def yoso_ns(self, tokens: int, num_hashes: int) -> float:
        """All attention nodes, as YOSO attention at `num_hashes` (Zeng et al. 2021, section 3.2)."""
        return sum(self._yoso_node_ns(node, tokens, num_hashes) for node in self.work.attention)

    def _yoso_node_ns(self, node: AttentionNode, tokens: int, num_hashes: int) -> float:
        rows = tokens + node.queries(tokens)
        hashing = rows * node.hash_bits * node.head_dim / self.rates.hash
        buckets = rows * node.value_dim * self.rates.bucket_ns
        tables = (1 << node.hash_bits) * node.value_dim * self.rates.clear_ns
        return num_hashes * node.num_heads * (hashing + buckets + tables)

    def exact_ns(self, tokens: int) -> float:
        """The whole model with exact softmax attention."""
        return self.rest_ns(tokens) + self.projection_ns(tokens) + self.softmax_ns(tokens)

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
