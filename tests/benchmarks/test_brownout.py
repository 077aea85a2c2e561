"""The load test of brownout: it runs, and counts what came of requests. No time is asserted."""

import json
from pathlib import Path

import matplotlib as mpl
import pytest
import tiny
from benchmarks.report import brownout_plot
from benchmarks.service import brownout
from benchmarks.service.brownout import Exchange, by_second, poisson, summary


def answer(label: str, num_hashes: int, by: str = "caller") -> dict[str, object]:
    return {"predictions": [{"label": label, "score": 0.9}], "knobs": {"num_hashes": num_hashes}, "chosen_by": by}


def test_counts_are_of_what_came_back() -> None:
    exact = [answer("good", 0), answer("bad", 0)]
    exchanges = [
        Exchange(0.1, 0, 200, 0.2, answer=answer("good", 8, "brownout")),
        Exchange(0.5, 1, 200, 3.0, answer=answer("good", 0)),
        Exchange(1.5, 0, 429, 0.01),
        Exchange(1.6, 0, 503, 0.01),
    ]
    row = summary(exchanges, exact, 1.0, 2)
    assert (row["requests"], row["answered"], row["refused"]["share"], row["other"]) == (4, 2, 0.25, 1)
    assert (row["within_target"]["share"], row["agreement"]["share"], row["lowered"]) == (0.5, 0.5, 0.5)
    assert row["labels_differing"] == pytest.approx(0.5), "two labels of the two answers' four"
    seconds = by_second(exchanges, "num_hashes")
    assert [(each["second"], each["requests"], each["refused"]) for each in seconds] == [(0, 2, 0), (1, 2, 1)]
    assert (seconds[0]["longest_s"], seconds[1]["longest_s"], seconds[1]["knob"]) == (3.0, None, None)


def test_arrivals_are_as_many_as_asked_for() -> None:
    times = poisson(50.0, 40.0, seed=3)
    assert times == sorted(times)
    assert len(times) == pytest.approx(2000, rel=0.1)
    assert times == poisson(50.0, 40.0, seed=3)


def test_it_runs_and_is_drawn(tmp_path: Path) -> None:
    bundle = tiny.write(tmp_path / "yoso", "yoso")
    texts, output = tmp_path / "texts.jsonl", tmp_path / "brownout.json"
    texts.write_text("".join(json.dumps({"text": "good film " * length}) + "\n" for length in (3, 300, 400)))
    options = [
        "--words",
        "600",
        "--floor",
        "num_hashes=8",
        "--seconds",
        "1",
        "--settle",
        "0",
        "--capacity-seconds",
        "0.2",
    ]
    assert brownout.main([str(bundle), "--texts", str(texts), *options, "--output", str(output)]) == 0
    result = json.loads(output.read_text())
    assert result["texts"] == 2, "the short one is left out"
    assert result["with"]["requests"] == result["without"]["requests"] > 0
    assert result["without"]["lowered"] == 0
    assert result["without"]["agreement"]["share"] == 1
    mpl.use("svg")
    brownout_plot.brownout([result], tmp_path / "brownout.svg")
    assert (tmp_path / "brownout.svg").stat().st_size > 1000
