"""What programs whose result files are written row by row end with: status, sentence and file."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.measure import record, resumable, summaries
from benchmarks.measure.resumable import Rows
from benchmarks.report.results_files import read

FACTS = {"benchmark": "x", "threads": 1}


def stopped(rows: Rows) -> None:
    rows.keep({"n": 1})
    raise KeyboardInterrupt


def out_of_time(rows: Rows) -> bool:
    rows.keep({"n": len(rows.done) + 1})
    return False


@pytest.mark.parametrize(
    ("measure", "status", "ending"),
    [
        (lambda rows: rows.keep({"n": 1}), 0, ""),
        (out_of_time, 0, ": the same command goes on"),
        (stopped, 130, ": the same command goes on"),
    ],
    ids=["complete", "out of time", "stopped"],
)
def test_the_status_and_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], measure: Any, status: int, ending: str
) -> None:
    output = tmp_path / "x.json"
    assert resumable.run(output, [], FACTS, measure, again=False) == status
    assert capsys.readouterr().err == f"{output}{ending}\n"
    written = json.loads(output.read_text())
    assert written["rows"] == [{"n": 1}]
    assert FACTS.items() <= written.items()


def test_the_next_run_goes_on_unless_it_measures_otherwise_or_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, other = tmp_path / "x.json", FACTS | {"threads": 2}
    for again, rows in ((False, [1]), (False, [1, 2]), (True, [1])):
        assert resumable.run(output, [], FACTS, out_of_time, again=again) == 0
        assert [row["n"] for row in json.loads(output.read_text())["rows"]] == rows
    capsys.readouterr()
    assert resumable.run(output, [], other, lambda _: pytest.fail("measured"), again=False) == 2
    assert capsys.readouterr().err.startswith(f"x: {output} was measured with another threads: give --again")
    assert resumable.run(output, [], other, out_of_time, again=True) == 0


def test_a_run_goes_on_from_the_committed_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "RAW", tmp_path / "raw")
    output = record.RAW / "x.json"
    rows = [{"n": 1, "commit": "a", "kernels": {}}, {"n": 2, "of_bound": 0.5, "commit": "b", "kernels": {"mca": "c"}}]

    def both(kept: Rows) -> None:
        for row in rows:
            kept.keep(row)

    assert resumable.run(output, [], FACTS, both, again=False) == 0
    output.unlink()  # as in a fresh clone
    assert read(tmp_path / "x.json")["rows"] == rows
    assert resumable.run(output, [], FACTS, lambda kept: kept.keep({"n": 3}), again=False) == 0
    assert json.loads(output.read_text())["rows"] == [*rows, {"n": 3}]


def test_a_summary_keeps_medians_and_the_elapsed_time_of_several_threads() -> None:
    spread = {"median": 2.0, "low": 1.0, "high": 3.0, "min": 0.5, "max": 9.0}
    timing = {"cpu_us": spread, "wall_us": spread, "rounds": 5, "repeats": 2}
    row = {"n": 16, "contenders": {"ours": timing}, "speed_up": {"ours": spread}, "over": {"ours": spread}}
    summary = summaries.summary({"attention": [row | {"threads": 1}, row | {"threads": 2}]})
    alone, several = summaries.whole(summary)["attention"]
    assert alone["contenders"] == {"ours": {"cpu_us": {"median": 2.0}}}
    assert several["contenders"] == {"ours": {"cpu_us": {"median": 2.0}, "wall_us": {"median": 2.0}}}
    assert alone["speed_up"] == {"ours": {"median": 2.0, "low": 1.0, "high": 3.0}}
    assert alone["over"] == {"ours": {"median": 2.0}}


def test_names_that_every_item_has_stand_once_in_a_summary() -> None:
    row = {"cpu_us": {"ours": dict.fromkeys(summaries.STATISTICS, 2.0)}, "by_second": [{"n": 1}, {"n": 2}]}
    summary = summaries.summary({"rounds_of": [row], "name": "x"})
    assert summary["rounds_of"] == [{"cpu_us": {"ours": 2.0}, "by_second": {"fields": ["n"], "rows": [[1], [2]]}}]
    assert summaries.whole(summary) == {"rounds_of": [row | {"cpu_us": {"ours": {"median": 2.0}}}], "name": "x"}


def test_a_summary_lacks_what_no_page_reads() -> None:
    row = {"n": 16, "contenders": {}, "errors": {"int8 ours": 0.1}}
    whole = {"benchmark": "models", "models": [row], "int8": [row]}
    assert summaries.summary(whole) == {
        "benchmark": "models",
        "models": [{"n": 16}],
        "int8": [{"n": 16, "errors": {"int8 ours": 0.1}}],
    }
