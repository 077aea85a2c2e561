"""What YosoAttention costs: linear in the length by hash tables, or, for short sequences, by counting collisions."""

from collections.abc import Mapping
from typing import NamedTuple

from attenuator.ops.cost import NOTHING_DRAWN, Drawn, NodeShape, OperatorCost, Outlook

ACOS_WORK = 32  # multiply-adds' worth of one collision probability, (1 - acos(x) / pi)^tau
PLANE_WORK = 100.0  # of one drawn coordinate, a byte: 78 to 125 with 32 to 128 channels and 8 to 512 hashes


class Units(NamedTuple):
    """Counted work by kind, or ns per unit of each kind.

    Attributes:
        hashing: int8 multiply-adds of hashing.
        codes: hash codes, each the address of a bucket.
        buckets: values added to, or read from, buckets.
        pairs: codes of a query compared with codes of a key.
    """

    hashing: float = 0.0
    codes: float = 0.0
    buckets: float = 0.0
    pairs: float = 0.0


RATES = Units(hashing=0.00148, codes=0.645, buckets=0.0593, pairs=0.0226)  # fitted by benchmarks.operators.cost_rates


def _codes(node: NodeShape, tokens: int, num_hashes: int) -> tuple[int, int]:
    """Hash codes of all keys and query rows, and the int8 multiply-adds that make them."""
    codes = num_hashes * node.num_heads * (tokens + node.queries(tokens))
    return codes, codes * int(node.attributes["hash_bits"]) * node.head_dim


def by_tables(node: NodeShape, tokens: int, num_hashes: int) -> Units:
    """Hash, scatter into tables, gather: linear in length (Zeng et al. 2021, section 3.2)."""
    codes, hashing = _codes(node, tokens, num_hashes)
    return Units(hashing=hashing, codes=codes, buckets=codes * node.value_dim)


def by_counts(node: NodeShape, tokens: int, num_hashes: int) -> Units:
    """Hash, count the collisions of every pair, multiply counts by values: quicker for short sequences.

    The product of counts and values was too small to be told from the comparisons when the rates were fitted.
    """
    _, hashing = _codes(node, tokens, num_hashes)
    return Units(hashing=hashing, pairs=num_hashes * node.num_heads * node.queries(tokens) * tokens)


def planes_drawn(node: NodeShape, num_hashes: int) -> Drawn:
    """The Gaussian hyperplanes of all heads for a new seed; the signs of Hadamard ones do not count."""
    if node.attributes.get("hash") == "hadamard":
        return NOTHING_DRAWN
    coordinates = num_hashes * node.num_heads * int(node.attributes["hash_bits"]) * node.head_dim
    return Drawn(coordinates * PLANE_WORK, coordinates)


class YosoCost(OperatorCost):
    """Keys are hashed and scattered once, rows hashed and gathered once, for each hash."""

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds of hashing and of the tables; at 0 hashes those of the expectation, quadratic in length."""
        rows, num_hashes = node.queries(tokens), int(knobs.get("num_hashes", 0))
        if not num_hashes:
            return node.attention_macs(tokens) + rows * tokens * ACOS_WORK * node.num_heads
        hash_bits = int(node.attributes["hash_bits"])
        return num_hashes * (tokens + rows) * node.num_heads * (hash_bits * node.head_dim + node.value_dim)

    def drawn(self, node: NodeShape, knobs: Mapping[str, float]) -> Drawn:
        """The hyperplanes of a new seed."""
        return planes_drawn(node, int(knobs.get("num_hashes", 0)))

    def ns(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """The quicker of the two ways."""
        num_hashes = int(knobs.get("num_hashes", 0))
        if not num_hashes:
            return super().ns(node, tokens, knobs)
        ways = (by_tables(node, tokens, num_hashes), by_counts(node, tokens, num_hashes))
        return min(sum(count * ns for count, ns in zip(units, RATES, strict=True)) for units in ways)

    def verdict(self, outlook: Outlook) -> list[str]:
        """The general one, and what the exact value is for."""
        [knob] = outlook.knobs
        return [
            *super().verdict(outlook),
            f"The exact value {knob.exact:g} computes the expectation, quadratic in length: for checking answers, not "
            "for speed.",
        ]


COST = YosoCost()
