"""`export --texts`: the schedule and the default of `keep` are the cheapest that agree on enough of the texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import CHECKPOINTS, TEXTS, Checkpoint, load, save

from attenuator.bundle import ChosenSelection, Manifest
from attenuator.calibration.turns import Timing, in_turns
from attenuator.errors import AttenuatorError
from attenuator.export import choose, export, trial
from attenuator.export.__main__ import selected
from attenuator.export.choose import AGREEMENT, FEWEST_TEXTS, SHARES
from attenuator.export.output import staging_for
from attenuator.runtime import Row
from attenuator.runtime import load as serve

WORDS = " ".join(TEXTS).split()
COUNT = FEWEST_TEXTS + 1


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Timing]:
    """What the clock says of a setting beside every token, in place of the models' own times, which are tiny."""
    timings = [Timing(1.0, 1.0, 1.0, 1.0), Timing(0.5, 2.0, 1.9, 2.1)]
    monkeypatch.setattr(trial, "in_turns", lambda runs, budget_s, threads: timings)
    return timings


@pytest.fixture(scope="module")
def lines() -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, size=draw.integers(3, 20))) for _ in range(COUNT)]


@pytest.fixture
def texts(lines: list[str], tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(lines))
    return path


@pytest.fixture(scope="module")
def sure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that gives nearly every text the same label, whatever is selected."""
    folder = save(Checkpoint(CHECKPOINTS["albert"].config), tmp_path_factory.mktemp("sure") / "albert")
    model = load(folder)
    model.classifier.bias.data[1] += 100
    model.save_pretrained(folder)
    return folder


def agreement(bundle: Path, lines: list[str], **knobs: float) -> float:
    """Of a served bundle, at these knobs and its defaults."""
    model = serve(bundle, check=False)
    encoded = [model.encode(line, truncate=True) for line in lines]

    def labels(values: dict[str, Any]) -> np.ndarray:
        rows = [Row(item.token_ids, item.type_ids, values, seed) for seed, item in enumerate(encoded)]
        return np.array([result.logits.argmax() for result in model.run(rows)])

    return float((labels(model.knobs.check(knobs)) == labels(model.knobs.exact())).mean())


def defaults(manifest: Manifest) -> dict[str, float]:
    return {knob.name: knob.default for knob in manifest.knobs}


def test_answers_that_never_change_get_the_cheapest_setting(sure: Path, texts: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    manifest = export(str(sure), attention="mca", output=tmp_path / "bundle", texts=texts, progress=steps.append)
    chosen = manifest.provenance.selection
    assert chosen is not None
    assert (chosen.schedule, chosen.share, chosen.texts, chosen.agreement) == ("first", min(SHARES), COUNT, 1)
    assert chosen.merge is None
    assert chosen.cost is not None
    assert chosen.cost < 0.7
    assert defaults(manifest) == {"keep": min(SHARES), "alpha": 0.2}
    assert "try keep 0.05, schedule first, on 300 texts" in steps
    summary = selected(chosen)
    assert f"schedule first, keep 0.05, chosen by {COUNT} texts" in summary
    assert "100.0% of the answers agree" in summary
    assert (chosen.gain, chosen.gain_low, chosen.gain_high) == (2.0, 1.9, 2.1)
    assert summary.endswith("2.00 times as fast as with every token [1.90, 2.10]")


NOT_WON = [
    (Timing(0.96, 1.04, 1.03, 1.05), "keeps 100.0% of the answers, but is only 1.04 times as fast as every token"),
    (Timing(0.95, 1.05, 1.03, 1.06), "but is only 1.05 times as fast as every token [1.03, 1.06]"),
    (Timing(0.9, 1.1, 0.98, 1.2), "but is only 1.10 times as fast as every token [0.98, 1.20]"),
    (Timing(0.5, 2.0, 1.0, 3.0), "but the machine was too busy to time it (2.00 times"),
]


def test_a_setting_that_does_not_win_by_the_clock_is_no_default(
    monkeypatch: pytest.MonkeyPatch, clock: list[Timing], sure: Path, texts: Path, tmp_path: Path
) -> None:
    """One export chooses once for each of these times, on the graphs that it traced."""
    choices: list[tuple[ChosenSelection, list[str]]] = []
    choose_setting = choose.choose_setting

    def chosen_at_each(trials: Any, options: Any, progress: Any, note: Callable[[str], None]) -> ChosenSelection:
        for timing, _ in NOT_WON:
            clock[1] = timing
            notes: list[str] = []
            choices.append((choose_setting(trials, options, progress, notes.append), notes))
        note(notes[0])
        return choices[-1][0]

    monkeypatch.setattr(choose, "choose_setting", chosen_at_each)
    notes: list[str] = []
    manifest = export(
        str(sure), attention="mca", output=tmp_path / "bundle", texts=texts, merge="none", note=notes.append
    )
    assert manifest.provenance.selection == choices[-1][0]
    assert notes == choices[-1][1]
    assert defaults(manifest) == {"keep": 1.0, "alpha": 0.2}
    for (chosen, said), (_, sentence) in zip(choices, NOT_WON, strict=True):
        assert (chosen.schedule, chosen.share, chosen.agreement, chosen.gain) == ("rising", 1.0, 1.0, None)
        assert len(said) == 1
        assert sentence in said[0]
        assert "the default of keep stays 1" in said[0]


def test_another_export_beside_it_leaves_the_trial_graph_alone(sure: Path, texts: Path, tmp_path: Path) -> None:
    def step(name: str) -> None:
        if name.startswith("try"):
            with staging_for(tmp_path / "other"):
                pass

    options: Any = {"texts": texts, "schedule": "first", "merge": "none", "progress": step}
    manifest = export(str(sure), attention="softmax", output=tmp_path / "bundle", **options)
    assert manifest.provenance.selection is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", texts.name]


def test_the_clock_runs_texts_of_every_length(
    monkeypatch: pytest.MonkeyPatch, sure: Path, texts: Path, tmp_path: Path
) -> None:
    """The same clock as `inspect --measure`, `calibrate` and `compare`, on one thread; every run answers."""

    def timed(runs: Any, budget_s: float, threads: int) -> list[Timing]:
        assert threads == 1
        return in_turns(runs, 0.0, threads=threads)

    monkeypatch.setattr(trial, "in_turns", timed)
    options: Any = {"texts": texts, "schedule": "first", "merge": "none", "knob_default": 0.3}
    manifest = export(str(sure), attention="softmax", output=tmp_path / "bundle", **options)
    chosen = manifest.provenance.selection
    assert chosen is not None
    assert chosen.share == 0.3, "who names a share gets it, whatever it wins"
    assert chosen.gain is not None
    assert chosen.gain_low is not None
    assert 0.3 < chosen.gain_low <= chosen.gain < 10


def test_the_choice_agrees_and_the_next_smaller_share_does_not(
    checkpoint: Callable[[str], Path], texts: Path, lines: list[str], tmp_path: Path
) -> None:
    source, output = str(checkpoint("encoder-softmax-post")), tmp_path / "bundle"
    manifest = export(source, attention="softmax", output=output, texts=texts, schedule="geometric", merge="none")
    chosen = manifest.provenance.selection
    assert chosen is not None
    assert chosen.schedule == "geometric"
    assert agreement(output, lines) == pytest.approx(chosen.agreement)
    below = [share for share in SHARES if share < chosen.share]
    assert agreement(output, lines) >= AGREEMENT
    assert below
    assert agreement(output, lines, keep=below[-1]) < AGREEMENT


def test_a_choice_with_merged_rows_is_what_the_bundle_answers(
    checkpoint: Callable[[str], Path], texts: Path, lines: list[str], tmp_path: Path
) -> None:
    options = {"texts": texts, "schedule": "first", "merge": "mean"}
    manifest = export(str(checkpoint("bert")), attention="softmax", output=tmp_path / "bundle", **options)
    chosen = manifest.provenance.selection
    assert chosen is not None
    assert (chosen.merge, chosen.texts) == ("mean", COUNT)
    assert chosen.share < 1
    assert agreement(tmp_path / "bundle", lines) == pytest.approx(chosen.agreement)
    assert f"keep {chosen.share:g}, merge mean, chosen by {COUNT} texts" in selected(chosen)


def test_texts_choose_between_dropping_and_merging(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Callable[[str], Path], texts: Path, tmp_path: Path
) -> None:
    """The same export chooses with each way to merge alone, as one that names it does."""
    alone: dict[str, ChosenSelection] = {}
    choose_setting = choose.choose_setting

    def chosen_with_each(trials: Any, *further: Any) -> ChosenSelection:
        alone.update({trial.merge: choose_setting([trial], *further) for trial in trials})
        return choose_setting(trials, *further)

    monkeypatch.setattr(choose, "choose_setting", chosen_with_each)
    manifest = export(str(checkpoint("bert")), output=tmp_path / "bundle", texts=texts, schedule="first")
    chosen = manifest.provenance.selection
    assert chosen is not None
    assert set(alone) == {"none", "mean"}
    costs = {merge: one.cost for merge, one in alone.items()}
    assert costs["none"] != costs["mean"]
    best = min(costs, key=lambda merge: costs[merge])
    assert (chosen.cost, chosen.share) == (costs[best], alone[best].share)
    assert chosen.merge == alone[best].merge == {"none": None, "mean": "mean"}[best]


def test_a_share_of_the_caller_leaves_the_schedule_to_choose(
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: Callable[[str], Path],
    texts: Path,
    lines: list[str],
    tmp_path: Path,
) -> None:
    tried: dict[str, trial.Setting] = {}

    def setting(merge: str, schedule: str, *measured: float) -> trial.Setting:
        tried[schedule] = trial.Setting(merge, schedule, *measured)
        return tried[schedule]

    monkeypatch.setattr(choose, "Setting", setting)
    source = str(checkpoint("encoder-softmax-post"))
    options: Any = {"attention": "softmax", "merge": "none", "knob_default": 0.3}
    chosen = export(source, output=tmp_path / "free", texts=texts, **options).provenance.selection
    assert chosen is not None
    assert len(tried) >= 3
    enough = [one for one in tried.values() if one.agreement >= AGREEMENT]
    best = min(enough, key=lambda one: one.cost) if enough else max(tried.values(), key=lambda one: one.agreement)
    assert (chosen.schedule, chosen.agreement, chosen.cost) == (best.schedule, best.agreement, best.cost)
    # What the trial measured is what bundles answer: of the schedule that was chosen, and of another one.
    assert agreement(tmp_path / "free", lines) == pytest.approx(chosen.agreement)
    other = next(name for name in tried if name != chosen.schedule)
    manifest = export(source, output=tmp_path / "other", schedule=other, **options)
    assert defaults(manifest) == {"keep": 0.3}
    assert agreement(tmp_path / "other", lines) == pytest.approx(tried[other].agreement)


def test_without_texts_the_default_schedule_and_all_tokens(exported: Callable[[str, str], Path]) -> None:
    manifest = serve(exported("bert", "softmax"), check=False).manifest
    assert manifest.provenance.selection is not None
    assert (manifest.provenance.selection.schedule, manifest.provenance.selection.texts) == ("rising", 0)
    assert defaults(manifest) == {"keep": 1}
    assert "--texts FILE would choose them" in selected(manifest.provenance.selection)


def test_json_lines_with_pairs(sure: Path, lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"text": line, "text_pair": line}) for line in lines))
    options: Any = {"texts": path, "schedule": "first", "merge": "none"}
    manifest = export(str(sure), attention="softmax", output=tmp_path / "bundle", **options)
    assert manifest.provenance.selection is not None
    assert manifest.provenance.selection.texts == COUNT


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("few.txt", "one text\n" * (FEWEST_TEXTS - 1), f"has {FEWEST_TEXTS - 1} texts, must have at least 299"),
        ("empty.txt", "", "has 0 texts"),
        ("bad.jsonl", "{}\n" * COUNT, "bad.jsonl line 1 has none of these fields"),
        ("latin.txt", b"\xff\n" * COUNT, "latin.txt line 1 is not UTF-8"),
    ],
)
def test_files_that_say_nothing_are_refused(
    name: str, content: str | bytes, words: str, sure: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(AttenuatorError) as error:
        export(str(sure), attention="softmax", output=tmp_path / "bundle", texts=path)
    assert words in str(error.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == [name], "nothing is left behind"


def test_fewest_texts_are_those_of_which_none_may_change() -> None:
    assert 0.99**FEWEST_TEXTS <= 0.05 < 0.99 ** (FEWEST_TEXTS - 1)
