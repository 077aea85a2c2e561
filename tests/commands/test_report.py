"""What `inspect` says of a model with several knobs, and of operators without one."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from attenuator.bundle import BundleKnob, ChosenSelection, Manifest, read_manifest
from attenuator.commands.report import Measured, Report, measured_verdict, report_on, values_of
from attenuator.commands.show import show
from attenuator.ops import KNOBS
from attenuator.ops.cost import NodeShape
from attenuator.ops.kept_lengths.spec import SPEC
from attenuator.runtime.work import COSTS, Stage, Work

LENGTHS = [64, 1024]
ATTRIBUTES: dict[str, int | float | str] = {"queries": "all", "window": 0, "hash_bits": 8, "estimator": "sampled"}
YOSO, MCA = NodeShape("yoso", 2, 32, 32, 0, ATTRIBUTES), NodeShape("mca", 2, 32, 32, 64, ATTRIBUTES)


@pytest.fixture
def manifest(bundles: dict[str, Path]) -> Manifest:
    """Of a bundle whose layers have two operators, each with its knob."""
    rows = {name: read_manifest(bundles[name]) for name in ("yoso", "mca")}
    knobs = [*rows["mca"].knobs, *rows["yoso"].knobs]
    return rows["yoso"].model_copy(update={"knobs": knobs})


def report_of(folder: Path, manifest: Manifest, nodes: list[NodeShape]) -> Report:
    work = Work([Stage(operators=nodes, token_macs=10_000, token_values=500)], layer_macs=5_000)
    return report_on(folder, manifest, work, LENGTHS, {knob.name: values_of(knob) for knob in manifest.knobs})


def printed(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200, markup=False, highlight=False)
    show(console, report)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_each_knob_varies_alone(bundles: dict[str, Path], manifest: Manifest) -> None:
    report = report_of(bundles["yoso"], manifest, [MCA, YOSO])
    for row in report.modelled:
        assert row.knobs.keys() == {"alpha", "num_hashes"}
        assert not row.knobs["alpha"].speedups, "what alpha wins depends on the text"
        speedups = list(row.knobs["num_hashes"].speedups.values())
        assert speedups == sorted(speedups, reverse=True)
        assert 1 < speedups[0] < row.knobs["num_hashes"].limit < row.free_attention
        assert 1 < row.knobs["alpha"].limit < row.knobs["num_hashes"].limit
    assert report.crossover.keys() == {"num_hashes"}
    text = printed(report)
    assert "What each knob can win, modelled" in text
    assert "alpha at most  num_hashes 8" in text
    assert "At the defaults (alpha 0.2, num_hashes 32) this model is modelled" in text
    assert "num_hashes can win most: turn it first." in text
    assert "overtakes exact softmax attention" in text
    assert "even a free one wins at most" in text


def test_times_of_several_knobs_are_shown_knob_by_knob(bundles: dict[str, Path], manifest: Manifest) -> None:
    report = report_of(bundles["yoso"], manifest, [MCA, YOSO])
    times: dict[str, dict[float, float]] = {"alpha": {0.1: 3.0, 1.0: 2.0}, "num_hashes": {8: 1.0, 64: 5.0}}
    shares = {"value_flops": {"alpha": {0.1: 0.9, 1.0: 0.25}}}
    report.measured = [Measured(tokens=tokens, exact_ms=4.0, knob_ms=times, outputs=shares) for tokens in LENGTHS]
    sentences = measured_verdict(report, Work([Stage(operators=[MCA, YOSO])]))
    assert sentences[0].startswith("Measured here, alpha won at most 2.00x (1 at 1024 tokens)")
    assert "num_hashes is faster than exact softmax attention: 8 from 64 tokens, 64 at none of these" in sentences[-1]
    text = printed(report)
    assert "Measured here over alpha, at num_hashes 32, ms (speed-up)" in text
    assert "1 (4.00x)" in text
    assert "value_flops over alpha: share of the exact value projection's multiply-adds spent" in text


@pytest.mark.parametrize(
    ("default", "sentences"),
    [
        (0.3, ["Modelled, keep 0.3 makes the whole model", "keep 0.1  keep 0.25  keep 0.3  keep 0.5  keep 0.75"]),
        (1.0, ["At the default, keep 1, every token goes on and nothing is won.", "keep 0.1  keep 0.25  keep 0.5"]),
    ],
)
def test_what_a_selection_can_win(
    bundles: dict[str, Path], manifest: Manifest, default: float, sentences: list[str]
) -> None:
    """Two layers with alpha, the second of the kept rows: keep wins nearly half, whatever alpha does."""
    keep = BundleKnob(**{field: getattr(KNOBS["keep"], field) for field in BundleKnob.model_fields})
    keep = keep.model_copy(update={"default": default})
    manifest = manifest.model_copy(update={"knobs": [manifest.knobs[0], keep]})
    selection = NodeShape("kept_lengths", 0, 0, 0, 0, SPEC.filled({}), 1)
    attention = replace(MCA, attributes={**ATTRIBUTES, "importance": "first"})
    stages = [
        Stage(operators=[attention, selection], token_macs=10_000, token_values=100),
        Stage(selection, operators=[attention], token_macs=10_000, token_values=100),
    ]
    values = {knob.name: values_of(knob) for knob in manifest.knobs}
    report = report_on(bundles["mca"], manifest, Work(stages, layer_macs=10_000), LENGTHS, values)
    assert report.parts == {"alpha": "projection", "keep": "rows"}
    for row in report.modelled:
        speedups = list(row.knobs["keep"].speedups.values())
        assert speedups == sorted(speedups, reverse=True)
        assert 1.6 < speedups[0] < row.knobs["keep"].limit < 2
    # What alpha can spare, it spares of the rows that are there.
    alone = report_on(
        bundles["mca"],
        manifest,
        Work([Stage(operators=[MCA, MCA], token_macs=20_000, token_values=200)]),
        LENGTHS,
        values,
    )
    limits = [each.modelled[0].knobs["alpha"].limit for each in (report, alone)]
    assert limits[0] == pytest.approx(limits[1], rel=0.02)
    text = printed(report)
    assert "schedule      all at once: keep of the tokens goes on from layer 1's attention" in text
    assert "chosen by     the attention that the first token pays it, summed over heads" in text
    assert "keep can win most: turn it first." in text
    assert report.verdict.index("keep can win most: turn it first.") == 1
    assert all(sentence in text for sentence in sentences)


def test_what_texts_chose_is_shown(bundles: dict[str, Path]) -> None:
    manifest = read_manifest(bundles["softmax"])
    older = ChosenSelection(
        schedule="early", texts=300, share=0.3, agreement=0.9925, agreement_low=0.978, agreement_high=0.998, cost=0.41
    )
    chosen = older.model_copy(update={"texts": 400, "gain": 1.8, "gain_low": 1.7, "gain_high": 1.9})
    shown = {}
    for selection in (None, older, chosen, ChosenSelection(schedule="early", texts=0, share=1.0)):
        source = manifest.provenance.model_copy(update={"selection": selection})
        node = NodeShape("softmax", 2, 32, 32, 0, ATTRIBUTES)
        text = printed(report_of(bundles["softmax"], manifest.model_copy(update={"provenance": source}), [node]))
        shown[selection and selection.texts] = [line for line in text.splitlines() if line.startswith("selection")]
    assert shown[None] == []
    assert "schedule early: set at export or its default; no texts chose it in fp32" in shown[0][0]
    assert (
        "schedule early, chosen by 400 texts: at the defaults 99.2% of the answers agree with the exact"
        in shown[400][0]
    )
    assert "(95 % interval from 97.8%), 1.80 times as fast as with every token [1.70, 1.90]" in shown[400][0]
    assert shown[300][0].endswith("(95 % interval from 97.8%)"), "no predicted share of the work"


def test_the_schedule_in_words() -> None:
    def advice(*exponents: float) -> str:
        filled = [SPEC.filled({"exponent": each}) for each in exponents]
        nodes = [NodeShape("kept_lengths", 0, 0, 0, 0, each, 1 + at) for at, each in enumerate(filled)]
        return COSTS["kept_lengths"].summary(nodes)["schedule"]

    assert advice(1 / 3, 1 / 3, 1 / 3) == (
        "step by step: keep^0.333 of the rows goes on from the attention of layers 1, 2 and 3 each"
    )
    assert advice(0.25, 0.75) == (
        "step by step: of the rows goes on keep^0.25 from layer 1's attention, keep^0.75 from layer 2's attention"
    )


def test_a_bundle_without_knobs_says_so(bundles: dict[str, Path]) -> None:
    manifest = read_manifest(bundles["softmax"])
    text = printed(report_of(bundles["softmax"], manifest, [NodeShape("softmax", 2, 32, 32, 0, ATTRIBUTES)]))
    assert "What a faster attention can win" in text
    assert "has no knob" in text


def test_the_verdict_is_of_every_operator_that_has_a_knob_here(bundles: dict[str, Path]) -> None:
    """ModernBERT with MCA: exact local layers do not speak for the bundle."""
    manifest = read_manifest(bundles["mca"])
    report = report_of(bundles["mca"], manifest, [NodeShape("softmax", 2, 32, 32, 0, ATTRIBUTES), MCA])
    assert not any("no knob" in sentence for sentence in report.verdict)
    assert any("alpha can win at most" in sentence for sentence in report.verdict)


def test_figures_of_one_length_are_said_once(bundles: dict[str, Path]) -> None:
    """Not "1.07x at 80 tokens, and 1.07x at 80"."""
    keep = BundleKnob(**{field: getattr(KNOBS["keep"], field) for field in BundleKnob.model_fields})
    manifest = read_manifest(bundles["mca"])
    knobs = [*manifest.knobs, keep.model_copy(update={"default": 0.3})]
    selection = NodeShape("kept_lengths", 0, 0, 0, 0, SPEC.filled({}), 1)
    attention = replace(MCA, attributes={**ATTRIBUTES, "importance": "first"})
    stage = Stage(operators=[attention, selection], token_macs=10_000, token_values=100)
    work = Work([stage, Stage(selection, operators=[attention], token_macs=10_000, token_values=100)])
    values = {knob.name: values_of(knob) for knob in knobs}
    report = report_on(bundles["mca"], manifest.model_copy(update={"knobs": knobs}), work, [80], values)
    report.measured = [Measured(tokens=80, exact_ms=4.0, knob_ms={"keep": {0.3: 2.0}})]
    sentences = report.verdict + measured_verdict(report, work)
    exact = read_manifest(bundles["softmax"])
    softmax = Work([Stage(operators=[NodeShape("softmax", 2, 32, 32, 0, ATTRIBUTES)], token_macs=10_000)])
    sentences += report_on(bundles["softmax"], exact, softmax, [80], {}).verdict
    assert any("at 80 tokens, keep 0.3 won 2.00x." in sentence for sentence in sentences)
    assert max(sentence.count("80") for sentence in sentences) == 1
