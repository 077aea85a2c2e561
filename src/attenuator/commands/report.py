"""What `attenuator inspect` finds out, as data: one object that `--json` writes and `show` prints."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from attenuator.bundle import MANIFEST, BundleKnob, Manifest
from attenuator.commands.cost import RATES_MACHINE, CostModel
from attenuator.runtime.work import Work

SHORTEST_LENGTH, LENGTHS_SHOWN = 32, 8
# A measured gain this far above the modelled limit is doubted.
NOISE = 1.03
# As multiples of the knob's default.
VALUES_SHOWN = (0.25, 0.5, 1.0, 2.0)


class Row(BaseModel):
    """What the cost model says about one length.

    Attributes:
        tokens: the length.
        attention_share: share of the exact model's time that attention takes.
        free_attention: speed-up of the whole model if attention cost nothing.
        speedups: YOSO, by number of hashes: speed-up of the whole model over exact softmax attention.
        layer_projection_share: MCA, share of a full layer's multiply-adds that the value projection takes.
        free_projection: MCA, speed-up of the whole model if those value projections cost nothing.
    """

    tokens: int
    attention_share: float
    free_attention: float
    speedups: dict[float, float] = {}
    layer_projection_share: float | None = None
    free_projection: float | None = None


class Measured(BaseModel):
    """What was timed at one length, one sequence at a time.

    Attributes:
        tokens: the length.
        exact_ms: the whole model with exact softmax attention.
        knob_ms: the whole model by knob value.
        value_flops: MCA, by knob value: share of the exact value projection's multiply-adds spent.
    """

    tokens: int
    exact_ms: float
    knob_ms: dict[float, float] = {}
    value_flops: dict[float, float] = {}


class Report(BaseModel):
    """Everything about a bundle.

    Attributes:
        folder: where it lies.
        manifest: its manifest.
        files: bytes by file name.
        parameters: weights, by count.
        nodes: nodes of the domain by operator.
        modelled_on: the machine whose rates the cost model uses.
        modelled: one row per length.
        crossover: YOSO, by number of hashes: tokens from which it is faster than exact softmax attention.
        measured: one row per length, where timing was asked for.
        verdict: what follows, in sentences.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    folder: Path
    manifest: Manifest
    files: dict[str, int]
    parameters: int
    nodes: dict[str, int]
    modelled_on: str
    modelled: list[Row]
    crossover: dict[float, int | None] = {}
    measured: list[Measured] = []
    verdict: list[str] = []

    @property
    def knob(self) -> BundleKnob | None:
        """The bundle's knob, if it has one."""
        return self.manifest.knobs[0] if self.manifest.knobs else None


def lengths_up_to(longest: int) -> list[int]:
    """Doubling lengths that end at the longest."""
    lengths = [longest]
    while len(lengths) < LENGTHS_SHOWN and lengths[0] // 2 >= SHORTEST_LENGTH:
        lengths.insert(0, 1 << (lengths[0] - 1).bit_length() - 1)
    return lengths


def values_of(knob: BundleKnob) -> list[float]:
    """Values around the knob's default, within its bounds, without the exact one."""
    whole = knob.dtype == "int32"
    values = [round(knob.default * factor) if whole else knob.default * factor for factor in VALUES_SHOWN]
    return sorted({min(max(value, knob.low), knob.high) for value in values} - {knob.exact})


def report_on(folder: Path, manifest: Manifest, work: Work, lengths: Sequence[int], values: Sequence[float]) -> Report:
    """Reports without running anything.

    Args:
        folder: the bundle.
        manifest: its manifest.
        work: its model's work.
        lengths: to model, in tokens.
        values: of the knob; the exact value is not modelled.
    """
    model = CostModel(work)
    values = [value for value in values if value != manifest.knobs[0].exact]
    yoso = manifest.attention.operator == "yoso"
    mca = manifest.attention.operator == "mca"
    rows = [
        Row(
            tokens=tokens,
            attention_share=model.attention_share(tokens),
            free_attention=model.free_attention(tokens),
            speedups={value: model.yoso_speedup(tokens, int(value)) for value in values} if yoso else {},
            layer_projection_share=model.layer_projection_share(tokens),
            free_projection=model.free_projection(tokens) if mca else None,
        )
        for tokens in lengths
    ]
    found = Report(
        folder=folder,
        manifest=manifest,
        files={name: (folder / name).stat().st_size for name in sorted([*manifest.files, MANIFEST])},
        parameters=work.parameters,
        nodes=work.nodes,
        modelled_on=RATES_MACHINE,
        modelled=rows,
        crossover={value: model.crossover(int(value)) for value in values} if yoso else {},
    )
    found.verdict = {"yoso": _yoso_verdict, "mca": _mca_verdict}.get(manifest.attention.operator, _exact_verdict)(found)
    return found


def measured_verdict(found: Report) -> list[str]:
    """What follows from the times alone."""
    knob = found.knob
    if knob is None or not found.measured:
        return []
    gains = {(value, row.tokens): row.exact_ms / row.knob_ms[value] for row in found.measured for value in row.knob_ms}
    if found.manifest.attention.operator == "mca":
        value, tokens = max(gains, key=lambda key: gains[key])
        sentences = [
            f"Measured here, {knob.name} won at most {gains[value, tokens]:.2f}x ({value:g} at {tokens} tokens)."
        ]
        if gains[value, tokens] > max(row.free_projection or 1.0 for row in found.modelled) * NOISE:
            sentences.append("That is more than a free projection could win: the machine was busy; raise --budget-s.")
        return sentences
    starts = []
    for value in found.measured[0].knob_ms:
        slower = [row.tokens for row in found.measured if gains[value, row.tokens] <= 1]
        start = next((row.tokens for row in found.measured if row.tokens > max(slower, default=0)), None)
        starts.append(f"{value:g} " + ("at none of these lengths" if start is None else f"from {start} tokens"))
    return [
        f"Measured here, {knob.name} is faster than exact softmax attention: {', '.join(starts)}; elsewhere exact "
        "attention is the better choice."
    ]


def _yoso_verdict(found: Report) -> list[str]:
    knob = found.manifest.knobs[0]
    longest = found.modelled[-1]
    sentences = []
    default = min(found.crossover, key=lambda value: abs(value - knob.default)) if found.crossover else None
    if default is not None:
        start = found.crossover[default]
        if start is None or start > found.manifest.max_tokens:
            sentences.append(
                f"At {knob.name} {default:g} exact softmax attention is faster at every length this model takes: "
                "exact attention is the better choice."
            )
        else:
            sentences.append(
                f"{knob.name} {default:g} overtakes exact softmax attention at about {start} tokens; for shorter texts "
                "exact attention is the better choice: faster, and without sampling error."
            )
        sentences.append(
            f"At {longest.tokens} tokens attention is {longest.attention_share:.0%} of an exact model's time: free "
            f"attention would win {longest.free_attention:.1f}x, {knob.name} {default:g} wins "
            f"{longest.speedups[default]:.1f}x."
        )
    sentences.append(
        f"The exact value {knob.exact:g} computes the expectation, quadratic in length: for checking answers, not for "
        "speed."
    )
    return sentences


def _mca_verdict(found: Report) -> list[str]:
    knob = found.manifest.knobs[0]
    best = max(found.modelled, key=lambda row: row.free_projection or 1.0)
    sentences = []
    if best.layer_projection_share is not None:
        share = best.layer_projection_share
        sentences.append(
            f"The value projection, all that {knob.name} can spare, is {share:.1%} of a layer's multiply-adds at "
            f"{best.tokens} tokens: even a free one wins at most {1 / (1 - share):.2f}x a layer (BERT-base at 128 "
            "tokens: 8.1%, 1.09x)."
        )
    sentences.append(
        f"Of this whole model {knob.name} can win at most {best.free_projection:.2f}x, at {best.tokens} tokens; what "
        "it does win depends on the text (--measure --sample FILE)."
    )
    sentences.append(
        f"Where a few per cent of time do not matter, exact attention ({knob.name} {knob.exact:g}) is the better "
        "choice at every length."
    )
    return sentences


def _exact_verdict(found: Report) -> list[str]:
    first, last = found.modelled[0], found.modelled[-1]
    return [
        "This bundle computes exact softmax attention and has no knob.",
        f"Attention is {first.attention_share:.0%} of its time at {first.tokens} tokens and "
        f"{last.attention_share:.0%} at {last.tokens}: free attention would win {first.free_attention:.2f}x and "
        f"{last.free_attention:.1f}x.",
    ]
