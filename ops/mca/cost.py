"""What McaAttention costs: exact attention, and the share of its value projection that the rule leaves to compute."""

import math
from collections.abc import Mapping

from attenuator.ops.cost import NS_PER_ATTENTION_MAC, NS_PER_DENSE_MAC, NodeShape, OperatorCost, Outlook, Part
from attenuator.ops.mca import rule

# Share of the value projection that a sampled head spends, times alpha * sqrt(C): 1.2 to 2.2 on short reviews.
SAMPLED_SHARE = 1.3
# Heads near break-even often fail the probe and are computed exactly; this exponent models how often. A compromise
# between the two bundled models, whose measured shares at alpha 0.5 and 300 tokens are 0.19 and 0.65.
PROBE_POWER = 5
# A measured gain above the modelled limit times this is reported as noise.
NOISE = 1.03


def value_share(node: NodeShape, tokens: int, alpha: float) -> float:
    """Predicted share of the exact value projection that a node computes; the true share depends on the text.

    Args:
        node: its shape.
        tokens: length of the sequence.
        alpha: the knob.

    Returns:
        0 to 1; 1 where nothing is sampled, as in half types, whose exact projection costs less (README.md, section 6).
    """
    estimator = str(node.attributes["estimator"])
    if node.first_only or estimator == "deterministic" or alpha <= 0:
        return 1.0
    if node.half and estimator != "paper":
        return 1.0
    if not rule.worth_approximating(tokens, node.channels, alpha, estimator, node.window, node.global_tokens):
        return 1.0
    share = min(1.0, SAMPLED_SHARE / (alpha * math.sqrt(node.channels)))
    saved = tokens * (rule.TOKEN_GAIN - rule.COLUMN_COST * share)
    if estimator != "sampled":
        return share
    needed = rule.head_cost(node.head_dim)
    if not rule.probe_of(tokens, node.window).rows:
        return share if saved >= needed else 1.0
    needed += rule.maxima_cost(tokens, node.window, node.head_dim) / node.channels
    return share + (1 - share) * (needed / saved) ** PROBE_POWER if saved > needed else 1.0


class McaCost(OperatorCost):
    """The value projection is all that alpha can spare."""

    part: Part = "projection"
    follows_text = True

    def work(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Multiply-adds of exact attention and of the predicted share of the value projection."""
        share = value_share(node, tokens, knobs.get("alpha", 0.0))
        return node.attention_macs(tokens) + share * node.projection_macs(tokens)

    def ns(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> float:
        """Attention, and the predicted share of the value projection."""
        share = value_share(node, tokens, knobs.get("alpha", 0.0))
        attention = NS_PER_ATTENTION_MAC * node.attention_macs(tokens)
        return attention + NS_PER_DENSE_MAC * share * node.projection_macs(tokens)

    def spared_macs(self, node: NodeShape, tokens: int) -> int:
        """The value projection; none where the node computes (A X) W_v, which leaves nothing to sample."""
        return 0 if node.first_only else node.projection_macs(tokens)

    def verdict(self, outlook: Outlook) -> list[str]:
        """The share of the model that the value projection takes, and so the most that alpha can win."""
        best = max(outlook.lengths, key=lambda length: length.free_part)
        [knob] = outlook.knobs
        sentences = []
        if best.layer_share is not None:
            sentences.append(
                f"The value projection, all that {knob.name} can spare, is {best.layer_share:.1%} of a layer's "
                f"multiply-adds at {best.tokens} tokens: even a free one wins at most "
                f"{1 / (1 - best.layer_share):.2f}x a layer (BERT-base at 128 tokens: 8.1%, 1.09x)."
            )
        return [
            *sentences,
            f"Of this whole model {knob.name} can win at most {best.free_part:.2f}x, at {best.tokens} tokens; what it "
            "does win depends on the text (--measure --sample FILE).",
            f"Where a few per cent of time do not matter, exact attention ({knob.name} {knob.exact:g}) is "
            "the better choice at every length.",
            f"On a GPU in fp16 and bf16 exact values cost less than approximate ones: {knob.name} changes nothing.",
        ]

    def measured_verdict(self, knob: str, gains: Mapping[float, Mapping[int, float]], limit: float) -> list[str]:
        """The most that was won."""
        gain, value, tokens = max(
            (gain, value, tokens) for value, by_length in gains.items() for tokens, gain in by_length.items()
        )
        sentences = [f"Measured here, {knob} won at most {gain:.2f}x ({value:g} at {tokens} tokens)."]
        if gain > limit * NOISE:
            sentences.append("That is more than a free projection could win: the machine was busy; raise --budget-s.")
        return sentences


COST = McaCost()
