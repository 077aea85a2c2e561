"""The command `calibrate` with lists: a tiny reranker, and a larger one whose order it is to keep."""

import inspect
import io
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from list_data import ranker, some_lists, written

import attenuator
from attenuator.__main__ import main
from attenuator.bundle import CALIBRATION, PARTIAL, read_manifest
from attenuator.calibration import Calibration, read_calibration
from attenuator.calibration.grid import grid
from attenuator.calibration.lists import ListCalibration, most_within
from attenuator.calibration.proportions import lower_bound
from attenuator.commands.calibrate import runs, timing
from attenuator.commands.calibrate.__main__ import note_few_lists
from attenuator.commands.calibrate.list_file import Lists
from attenuator.commands.calibrate.ordering import TOPS
from attenuator.commands.calibrate.texts import Texts
from attenuator.commands.calibrated_lists import cheapest_that_kept
from attenuator.errors import EngineError
from attenuator.runtime import Model, Row, load
from attenuator.runtime import model as loading

Scores = list[list[float]]


def calibrate(*arguments: str | Path, goal: str = "0.8") -> tuple[int, str, str]:
    """Runs `attenuator calibrate WORDS`; exit code, standard output on one line, standard error."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        code = main(["calibrate", *map(str, arguments), "--min-agreement", goal])
    expected = ("the machine was busy", "lists: a min_agreement")
    said = [line for line in errors.getvalue().splitlines(keepends=True) if not any(each in line for each in expected)]
    return code, " ".join(output.getvalue().split()), "".join(said)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (16, "lists.jsonl has 16 lists: a min_agreement of 0.95 takes 117 and 0.99 takes 597, even if"),
        (596, "lists.jsonl has 596 lists: a min_agreement of 0.99 takes 597, even if"),
        (597, ""),
    ],
)
def test_too_few_lists_for_a_goal_are_said_to_be_too_few(
    count: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    note_few_lists(Texts("lists.jsonl", "", [], None, Lists([2] * count, None)), 0.975, 10)
    assert said in (errors := capsys.readouterr().err)
    assert bool(said) == bool(errors)


def test_the_command_says_that_lists_are_few(folder: Path, data: Path) -> None:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        assert main(["calibrate", str(folder), "--data", str(data), "--min-agreement", "0.8"]) == 0
    assert "lists.jsonl has 16 lists: a min_agreement of 0.95 takes" in errors.getvalue()


@pytest.fixture(scope="module", autouse=True)
def short_times() -> Iterator[None]:
    """Times are taken, but need not be good."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SECONDS_PER_RUN", 0.001)
        patch.setattr(timing, "ATTEMPTS", 1)
        yield


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranker(tmp_path_factory.mktemp("lists") / "mini", 1)


@pytest.fixture(scope="module")
def base(fresh: Path) -> Path:
    return ranker(fresh.parent / "base", 2, max_tokens=128)


@pytest.fixture(scope="module")
def data(fresh: Path) -> Path:
    return written(fresh.parent / "lists.jsonl", some_lists())


@pytest.fixture(scope="module")
def calibrated(fresh: Path, data: Path) -> Path:
    folder = Path(shutil.copytree(fresh, fresh.parent / "calibrated"))
    code, _, errors = calibrate(folder, "--data", data)
    assert (code, errors) == (0, "")
    return folder


@pytest.fixture
def folder(fresh: Path, tmp_path: Path) -> Path:
    """The bundle, for one test."""
    return Path(shutil.copytree(fresh, tmp_path / "bundle"))


def calibration_of(folder: Path) -> Calibration:
    calibration = read_calibration(folder, read_manifest(folder))
    assert calibration is not None
    return calibration


def lists_of(folder: Path) -> ListCalibration:
    lists = calibration_of(folder).lists
    assert lists is not None
    return lists


def texts_of(record: dict[str, Any]) -> list[str]:
    return [each["text"] if isinstance(each, dict) else each for each in record["documents"]]


def scores(model: Model, records: list[dict[str, Any]], knobs: dict[str, float]) -> Scores:
    """The output of each pair, one run each, its seed the place of its list."""
    checked, every = model.knobs.check(knobs), []
    for place, record in enumerate(records):
        row = []
        for document in texts_of(record):
            pair = model.encode(record["query"], document)
            [result] = model.run([Row(pair.token_ids, pair.type_ids, checked, seed=place)])
            row.append(float(result.logits[0]))
        every.append(row)
    return every


def best_first(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda place: (-values[place], place))


def plain_order(first: list[float], second: list[float], rescored: int) -> list[int]:
    order = best_first(first)
    again = set(order[:rescored])
    return sorted(again, key=lambda place: (-second[place], place)) + [each for each in order if each not in again]


def bound(kept: int, lists: int, folder: Path, confidence: float = 0.975) -> float:
    """With which the bounds of all settings of the grid hold together."""
    return lower_bound(kept, lists, 1 - (1 - confidence) / len(grid(read_manifest(folder).knobs)))


def check_figures(lists: ListCalibration, folder: Path, second: Scores, records: list[dict[str, Any]]) -> None:
    """Compares each figure with one that is computed here, list by list."""
    mini = load(folder, check=False)
    assert len(lists.settings) > 1
    for setting in lists.settings:
        firsts = scores(mini, records, setting.knobs)
        for column, share in enumerate(lists.shares):
            orders = [
                plain_order(first, again, most_within(share, len(first)))
                for first, again in zip(firsts, second, strict=True)
            ]
            exact = [best_first(again) for again in second]
            for row, top in enumerate(lists.tops):
                same = sum(ours[:top] == theirs[:top] for ours, theirs in zip(orders, exact, strict=True))
                kept = setting.same_top[row][column]
                assert (kept.successes, kept.trials) == (same, len(records))
                assert kept.bound == pytest.approx(bound(same, len(records), folder))
            overlap = [
                len(set(ours[:10]) & set(theirs[:10])) / len(theirs[:10])
                for ours, theirs in zip(orders, exact, strict=True)
            ]
            assert setting.overlap[column] == pytest.approx(np.mean(overlap), rel=1e-5)
            gains, ranks = [], []
            for order, record in zip(orders, records, strict=True):
                hits = [place in record["relevant"] for place in order[:10]]
                ideal = sum(1 / np.log2(rank + 2) for rank in range(min(10, len(record["relevant"]))))
                gained = sum(hit / np.log2(rank + 2) for rank, hit in enumerate(hits))
                gains.append(gained / ideal if ideal else 0.0)
                ranks.append(1 / (hits.index(True) + 1) if any(hits) else 0.0)
            assert setting.ndcg[column] == pytest.approx(np.mean(gains), rel=1e-5)
            assert setting.mrr[column] == pytest.approx(np.mean(ranks), rel=1e-5)


def test_figures_are_those_of_the_runtime(calibrated: Path, fresh: Path, data: Path) -> None:
    lists, records = lists_of(calibrated), some_lists()
    sizes = [len(record["documents"]) for record in records]
    assert (lists.lists, lists.documents, lists.data) == (len(records), int(np.median(sizes)), "lists.jsonl")
    assert lists.tops == list(TOPS)
    assert lists.reference is None
    assert calibration_of(calibrated).texts == sum(sizes)
    mini = load(fresh, check=False)
    check_figures(lists, fresh, scores(mini, records, mini.knobs.exact()), records)  # type: ignore[arg-type]
    exact = lists.settings[0]
    assert exact.knobs == mini.knobs.exact()
    assert all(kept.value == 1 for row in exact.same_top for kept in row)
    assert any(kept.value < 1 for setting in lists.settings for row in setting.same_top for kept in row)
    assert mini.knobs.defaults() in [setting.knobs for setting in lists.settings]


def test_answers_in_two_steps_keep_the_order_as_often_as_measured(folder: Path, data: Path) -> None:
    """Lists ranked as callers have them ranked: with an alpha of 0 nothing is drawn, so that no seed counts."""
    alpha, keep = read_manifest(folder).knobs
    tiny.sign(folder, knobs=[alpha.model_copy(update={"default": 0.0, "high": 0.0}), keep])
    assert calibrate(folder, "--data", data)[::2] == (0, "")
    lists, records = lists_of(folder), some_lists()
    with attenuator.load(folder) as model:

        def order(record: dict[str, Any], **fields: Any) -> list[int]:
            return [result.index for result in model.rerank(record["query"], record["documents"], **fields).results]

        exact = [order(record, keep=1.0) for record in records]
        assert any(kept.value < 1 for setting in lists.settings for kept in setting.same_top[0])
        for setting in lists.settings[1:]:
            for column in (0, 4, 7, 8, 9):
                again = [most_within(lists.shares[column], len(each)) for each in exact]
                orders = [
                    order(record, **setting.knobs, rescore=count or None)
                    for record, count in zip(records, again, strict=True)
                ]
                for row, top in enumerate(lists.tops):
                    same = sum(ours[:top] == theirs[:top] for ours, theirs in zip(orders, exact, strict=True))
                    assert setting.same_top[row][column].successes == same


def test_more_documents_again_never_keep_fewer_lists(calibrated: Path) -> None:
    for setting in lists_of(calibrated).settings:
        for row in setting.same_top:
            kept = [each.successes for each in row]
            assert kept == sorted(kept)
            assert kept[-1] == row[-1].trials


def test_pairs_and_times_are_measured_as_those_of_texts(calibrated: Path, folder: Path, tmp_path: Path) -> None:
    """And a calibration of texts keeps the lists, at its own confidence."""
    pairs = [
        {"text": record["query"], "text_pair": document} for record in some_lists() for document in texts_of(record)
    ]
    shutil.copy(calibrated / CALIBRATION, folder)
    before = calibration_of(folder)
    texts = written(tmp_path / "pairs.jsonl", pairs)
    assert calibrate(folder, "--data", texts, "--keep-times")[::2] == (0, "")
    after = calibration_of(folder)
    differ = {"data", "data_sha256"}
    assert after.model_dump(exclude=differ) == before.model_dump(exclude=differ)
    of_lists = [setting.knobs for setting in lists_of(calibrated).settings]
    assert [each for each in of_lists if before.setting(each) is None] == []
    assert [speed.knobs for speed in before.latency[0].speeds] == [setting.knobs for setting in before.settings]
    assert calibrate(folder, "--data", texts, "--keep-times", "--confidence", "0.9")[::2] == (0, "")
    kept, was = (lists_of(each).settings[1].same_top[0][0] for each in (folder, calibrated))
    assert kept.successes == was.successes
    assert kept.bound == pytest.approx(bound(was.successes, was.trials, folder, 0.9))
    assert calibrate(folder, "--data", texts, "--only-times")[::2] == (0, "")
    assert lists_of(folder).settings[1].same_top[0][0] == kept


def test_an_interrupted_run_goes_on_to_the_same_figures(
    calibrated: Path, folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, left = Model.run, [20]

    def breaks(model: Model, rows: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise EngineError("interrupted")
        return whole(model, rows)

    # In a process of its own the check of the bundle, which runs it, is not counted.
    monkeypatch.setattr(loading, "check_in_child", inspect.unwrap(loading.check_in_child))
    monkeypatch.setattr(runs, "TOKENS_PER_BATCH", 512)
    monkeypatch.setattr(Model, "run", breaks)
    assert calibrate(folder, "--data", data)[0] == 1
    assert (folder / PARTIAL).read_bytes().count(b"\n") == 21
    monkeypatch.setattr(Model, "run", whole)
    assert calibrate(folder, "--data", data)[::2] == (0, "")
    assert calibration_of(folder).model_dump(exclude={"latency"}) == calibration_of(calibrated).model_dump(
        exclude={"latency"}
    )


def test_the_order_of_a_larger_model(folder: Path, base: Path, data: Path) -> None:
    """Agreement of pairs stays that with the bundle's own exact scores: those of another model have another scale."""
    code, said, errors = calibrate(folder, "--data", data, "--reference", base)
    assert (code, errors) == (0, "")
    lists, records = lists_of(folder), some_lists()
    revision = read_manifest(base).revision
    assert lists.reference == revision
    assert calibration_of(folder).reference is None
    assert all(row.value == 1 for row in calibration_of(folder).settings[0].agreement)
    larger = load(base, check=False)
    second = scores(larger, records, larger.knobs.exact())  # type: ignore[arg-type]
    check_figures(lists, folder, second, records)
    assert any(kept.value < 1 for row in lists.settings[0].same_top for kept in row), "the two models differ"
    assert f"the exact order is that of the bundle {revision[:12]}, which scores again" in said
    kept = [max(p.value for setting in lists.settings for p in setting.same_top[top][:-1]) for top in range(4)]
    missed = {top: most for top, most in zip(lists.tops, kept, strict=True) if most < 0.95}
    assert missed
    assert "no setting with less than the whole list scored again keeps the exact first" in said
    assert f"of the lists; the best keeps them of {', '.join(f'{most:.0%}' for most in missed.values())}." in said


def test_a_bundle_in_int8_before_a_larger_model(folder: Path, base: Path, data: Path, tmp_path: Path) -> None:
    """It is calibrated with its checkpoint first; the lists of the larger model are then added."""
    exact = ranker(tmp_path / "exact", 1)
    for each in (exact, folder):
        provenance = read_manifest(each).provenance.model_copy(update={"weights": "1" * 64})
        tiny.sign(each, provenance=provenance, precision="fp32" if each == exact else "int8")
    code, _, errors = calibrate(folder, "--data", data, "--reference", base)
    assert code == 1
    assert "has no calibration, must have one before lists of a larger model are added" in errors
    assert calibrate(folder, "--data", data, "--reference", exact)[::2] == (0, "")
    own = calibration_of(folder)
    assert own.lists is not None
    assert (own.reference, own.lists.reference) == (read_manifest(exact).revision, None)
    assert calibrate(folder, "--data", data, "--reference", base)[::2] == (0, "")
    both = calibration_of(folder)
    assert both.lists is not None
    assert both.lists.reference == read_manifest(base).revision
    assert both.model_dump(exclude={"lists"}) == own.model_dump(exclude={"lists"})
    for row in both.lists.settings:  # those that ran are of a grid whose bounds hold together
        kept = row.same_top[0][0]
        assert kept.bound == pytest.approx(bound(kept.successes, kept.trials, folder))
    assert {frozenset(row.knobs.items()) for row in both.lists.settings} <= {
        frozenset(row.knobs.items()) for row in both.settings
    }


def test_the_command_and_inspect_say_what_keeps_the_order(calibrated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(calibrated)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    head = "first of lists alpha, keep again speed-up kept at least nDCG@10 MRR@10"
    assert head in said
    lists = lists_of(calibrated)
    assert f"Measured on {lists.lists} lists of lists.jsonl, the median one of {lists.documents} documents" in said
    assert f"nDCG@10 is {lists.settings[0].ndcg[-1]:.3f} and MRR@10 {lists.settings[0].mrr[-1]:.3f}" in said


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("goal", [1.0, 0.9, 0.5, 0.2])
def test_the_cheapest_is_that_of_all_choices(calibrated: Path, goal: float, larger: bool) -> None:
    """By time; before a larger model, whose time is unknown, by how much that one scores."""
    calibration = calibration_of(calibrated)
    lists = lists_of(calibrated).model_copy(update={"reference": "1" * 64 if larger else None})
    texts = [bucket.texts for bucket in calibration.buckets]
    for top in range(len(lists.tops)):
        every = []
        for setting in lists.settings:
            one = calibration.setting(setting.knobs)
            assert one is not None
            time = float(np.average(one.time, weights=texts))
            kept = [share for share, p in zip(lists.shares, setting.same_top[top], strict=True) if p.value >= goal]
            every += [(share, time) if larger else (time + share, share) for share in kept]
        chosen = cheapest_that_kept(calibration, lists, top, goal, None)
        assert chosen is not None
        assert chosen.kept.value >= goal
        first, second = min(every)
        order = (chosen.share, chosen.time) if larger else (chosen.total, chosen.share)
        assert order == pytest.approx((first, second))


def test_lists_of_one_document_each_and_in_other_scripts(folder: Path, tmp_path: Path) -> None:
    """There is nothing to order: every setting keeps it."""
    scripts = ["фильм очень хорош", "映画はとても良い", "الفيلم جيد جدا", "ταινία 🎬", "fi\u0301lm"]
    records = [{"query": "🎬 фильм", "documents": [scripts[place % 5]]} for place in range(40)]
    assert calibrate(folder, "--data", written(tmp_path / "one.jsonl", records))[0] == 0
    lists = lists_of(folder)
    assert (lists.tops, lists.documents, lists.lists) == ([1], 1, 40)
    for setting in lists.settings:
        assert all(kept.value == 1 for kept in setting.same_top[0])
        assert (setting.ndcg, setting.mrr, set(setting.overlap)) == ([], [], {1.0})


def test_other_bundles_are_refused(folder: Path, bundles: dict[str, Path], data: Path, tmp_path: Path) -> None:
    labels = len(read_manifest(bundles["yoso"]).labels)
    assert f"classifier with {labels} labels: give texts" in calibrate(bundles["yoso"], "--data", data)[2]
    assert not (bundles["yoso"] / PARTIAL).exists()
    errors = calibrate(folder, "--data", data, "--reference", bundles["yoso"])[2]
    assert f"has {labels} outputs, must have one to order the documents of lists" in errors
    assert "itself, must be another model" in calibrate(folder, "--data", data, "--reference", folder)[2]
    texts = written(tmp_path / "texts.jsonl", [{"text": "good"}] * 80)
    assert (
        "leave --reference out (only lists may" in calibrate(folder, "--data", texts, "--reference", bundles["mca"])[2]
    )
