"""A bundle with one output: it loads, answers the logit itself, and never answers what is not a number."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny

from attenuator.errors import BundleError, EngineError
from attenuator.runtime import Row, load


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tiny.write(tmp_path_factory.mktemp("regression") / "rank", "mca", labels=("relevance",))
    tiny.sign(written, task="regression")
    return written


def test_it_loads_and_answers_the_logit(folder: Path) -> None:
    model = load(folder)  # checked in a child process, probe included
    pairs = [("good film", "bad plot"), ("very good", "a bad film")]
    encoded = [model.encode(*pair) for pair in pairs]
    results = model.run([Row(one.token_ids, one.type_ids, model.knobs.exact()) for one in encoded])
    answers = [model.predict(result.logits) for result in results]
    assert [answer.score for answer in answers] == [float(result.logits[0]) for result in results]
    assert {answer.label for answer in answers} == {"relevance"}
    assert answers[0].score != answers[1].score
    assert json.loads(json.dumps(answers[0].ranking, allow_nan=False)) == [["relevance", answers[0].score]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_an_error(folder: Path, value: float) -> None:
    model = load(folder, check=False)
    with pytest.raises(EngineError, match="model 'rank' gave logits that are not finite"):
        model.predict(np.array([value], dtype=np.float32))


def test_a_graph_with_more_outputs_is_refused(tmp_path: Path) -> None:
    wide = tiny.write(tmp_path / "wide", "softmax")
    tiny.sign(wide, task="regression", labels=["relevance"])
    with pytest.raises(BundleError, match="gives 3 logits per sequence, but bundle.json has 1 label"):
        load(wide)
