"""The README's table: its scores are what the bundled model gives for the request that the README sends."""

import pytest
from benchmarks.measure import record
from benchmarks.models import demo_request
from benchmarks.report.results_files import read


def test_the_committed_scores_are_those_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = read(record.RESULTS / "demo_request.json")
    monkeypatch.setattr(demo_request, "NUM_HASHES", (8,))  # the exact value takes seconds
    result = demo_request.measure(seconds=0)
    assert (result["tokens"], result["label"]) == (committed["tokens"], committed["label"])
    [row] = result["settings"]
    expected = next(item for item in committed["settings"] if item["num_hashes"] == row["num_hashes"])
    assert row["score"] == pytest.approx(expected["score"], abs=1e-4)
