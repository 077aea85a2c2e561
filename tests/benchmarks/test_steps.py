"""The steps of a benchmark: what was done is kept, what is not right is named, the others go on."""

import json
from pathlib import Path

from benchmarks.measure.cases import Row, checked
from benchmarks.measure.program import INTERRUPTED, Step, measure


def test_a_step_that_fails_is_a_failed_row_and_the_others_go_on(tmp_path: Path) -> None:
    passes: list[str] = []

    def step(name: str, error: float) -> Step:
        def work() -> Row:
            passes.append(name)
            return {"name": name, "error": checked(name, error, 0.1)}

        return Step("attention", name, work, 1.0)

    def too_large() -> Row:
        raise MemoryError("2 TB")

    def stopped() -> Row:
        raise KeyboardInterrupt

    steps = [step("first", 0.0), step("second", 1.0), Step("attention", "stops", stopped, 1.0), step("third", 0.0)]
    steps.append(Step("attention", "large", too_large, 1.0))
    output = tmp_path / "result.json"
    head = {"benchmark": "steps", "load_average": 1.0}
    assert measure(head, output, lambda: steps) == INTERRUPTED
    assert measure(head, output, lambda: [*steps[:2], *steps[3:]]) == 1
    assert passes == ["first", "second", "third"], "what failed is done, too"
    content = json.loads(output.read_text())
    assert [row["name"] for row in content["attention"]] == ["first", "third"]
    second, large = content["failed"]
    assert (second["section"], second["step"]) == ("attention", "second")
    assert "second differs from the reference by 1" in second["error"]
    assert large == {"section": "attention", "step": "large", "error": "MemoryError: 2 TB"}
