"""What KeptLengths costs, which is nothing, and what its knob spares: all work on rows that do not go on."""

from collections.abc import Mapping, Sequence

from attenuator.ops.cost import NegligibleCost, NodeShape, Outlook, Part
from attenuator.ops.kept_lengths.rule import MEAN, kept_length
from attenuator.ops.kept_lengths.spec import KEEP, SPEC

# By the attribute of the attention nodes that give it.
IMPORTANCE = {
    "first": "the attention that the first token pays it, summed over heads",
    "maximum": "the most attention that any token pays it, summed over heads",
}


class KeptLengthsCost(NegligibleCost):
    """Rows that are not kept cost nothing from the selection on."""

    part: Part = "rows"

    def rows(self, node: NodeShape, tokens: int, knobs: Mapping[str, float]) -> int:
        """Rows that the rule keeps."""
        exponent, merge = float(node.attributes["exponent"]), str(node.attributes["merge"])
        return kept_length(tokens, knobs.get(KEEP.name, KEEP.exact), exponent, merge)

    def summary(self, nodes: Sequence[NodeShape]) -> dict[str, str]:
        """After which layers tokens are left behind, which share of them, and by what they are chosen."""
        own = [node for node in nodes if node.operator == SPEC.key]
        kinds = {str(node.attributes.get("importance", "none")): None for node in nodes if node.num_heads}
        chosen = [IMPORTANCE.get(kind, kind) for kind in kinds if kind != "none"]
        merges = any(node.attributes["merge"] == MEAN for node in own)
        others = {"the others": "one row more, their mean"} if merges else {}
        return {"schedule": _schedule(own), "chosen by": " or ".join(chosen), **others}

    def verdict(self, outlook: Outlook) -> list[str]:
        """What the default wins, from which length on, and the most that any value can."""
        [knob] = outlook.knobs
        first, last = outlook.lengths[0], outlook.lengths[-1]
        best = max(outlook.lengths, key=lambda length: length.free_part)
        limit = (
            f"{knob.name} can win at most {best.free_part:.2f}x, at {best.tokens} tokens: what is computed before the "
            "first selection stays."
        )
        unknown = (
            f"How many labels change is not modelled: on texts of your own, compare answers with those at {knob.name} "
            f"{knob.exact:g}."
        )
        if knob.default == knob.exact:
            return [
                f"At the default, {knob.name} {knob.exact:g}, every token goes on and nothing is won.",
                limit,
                unknown,
            ]
        start = outlook.crossover
        if start is None or start > outlook.max_tokens:
            return [f"{outlook.setting} wins nothing at any length that this model takes: leave it at {knob.exact:g}."]
        at_first = f", and {first.speedup:.2f}x at {first.tokens}" if last.tokens > first.tokens else ""
        gain = (
            f"Modelled, {outlook.setting} makes the whole model {last.speedup:.2f}x as fast at {last.tokens} "
            f"tokens{at_first}."
        )
        short = f"Below about {start} tokens selecting costs more than it spares: {knob.name} {knob.exact:g} is faster."
        return [gain, *([short] if start > first.tokens else []), limit, unknown]

    def measured_verdict(self, knob: str, gains: Mapping[float, Mapping[int, float]], limit: float) -> list[str]:
        """What each value won at the shortest and the longest length."""
        parts = []
        for value, by_length in gains.items():
            (shortest, least), *_, (longest, most) = [*by_length.items()] * 2
            at_longest = f" and {most:.2f}x" if longest > shortest else ""
            parts.append(f"{value:g} won {least:.2f}x{at_longest}")
        lengths = f"{shortest} and {longest}" if longest > shortest else f"{shortest}"
        return [f"Measured here at {lengths} tokens, {knob} {'; '.join(parts)}."]


def _schedule(nodes: Sequence[NodeShape]) -> str:
    """The exponents, layer by layer, in words."""
    exponents = [float(node.attributes["exponent"]) for node in nodes]
    layers = [str(node.layer) for node in nodes]
    if len(nodes) == 1:
        return f"all at once: {_power(exponents[0])} of the tokens goes on from layer {layers[0]}'s attention"
    if max(exponents) - min(exponents) < 1e-3:
        several = f"{', '.join(layers[:-1])} and {layers[-1]}"
        return f"step by step: {_power(exponents[0])} of the rows goes on from the attention of layers {several} each"
    steps = (f"{_power(each)} from layer {layer}'s attention" for each, layer in zip(exponents, layers, strict=True))
    return f"step by step: of the rows goes on {', '.join(steps)}"


def _power(exponent: float) -> str:
    return KEEP.name if exponent == 1 else f"{KEEP.name}^{exponent:.3g}"


COST = KeptLengthsCost()
