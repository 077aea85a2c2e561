"""Files of lists that `calibrate` refuses, by the line at fault."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from list_data import ranker, some_lists, written

from attenuator.commands.calibrate.texts import read_texts
from attenuator.errors import InvalidRequest
from attenuator.runtime import Model, load


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(ranker(tmp_path_factory.mktemp("lists") / "mini", 1), check=False)


def changed(place: int, **fields: Any) -> Callable[[], list[dict[str, Any]]]:
    def records() -> list[dict[str, Any]]:
        every = some_lists()
        every[place] |= fields
        every[place] = {name: value for name, value in every[place].items() if value is not ...}
        return every

    return records


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        (changed(2, text="good"), "line 3 holds a text, but the lines before it hold lists"),
        (lambda: [{"text": "good"}, *some_lists()], "line 2 holds a list, but the lines before it hold texts"),
        (changed(2, label="x"), "line 3 has an unknown field 'label', must have query, documents and"),
        (changed(2, query=...), "line 3.query is missing, must be a text"),
        (changed(2, query=3), "line 3.query is 3, must be a text"),
        (changed(2, query=""), "line 3.query"),
        (changed(2, documents=...), "line 3.documents is missing, must be a list of one or more texts"),
        (changed(2, documents=[]), "line 3.documents is an empty list"),
        (changed(2, documents=["a", 5]), "line 3.documents[1] is 5, must be a text or"),
        (changed(2, documents=[{"text": "a", "id": 3}]), "line 3.documents[0] is an object with other fields"),
        (changed(2, documents=["good " * 80] * 4), "give --truncate"),
        (changed(2, relevant=...), "line 3 has no relevant, but the lines before it have it"),
        (changed(2, relevant=[9]), "line 3.relevant has 9, must be a list of different whole numbers from 0 to 3"),
        (changed(2, relevant=[-1]), "line 3.relevant has -1, must be"),
        (changed(2, relevant=[True]), "line 3.relevant has true, must be"),
        (changed(2, relevant=[1, 1]), "line 3.relevant has a place twice"),
        (changed(2, relevant=1), "line 3.relevant is 1, must be"),
        (lambda: some_lists(3), "has 9 pairs, must have at least"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(
    model: Model, tmp_path: Path, records: Callable[[], list[dict[str, Any]]], sentence: str
) -> None:
    path = written(tmp_path / "data.jsonl", records())
    with pytest.raises(InvalidRequest, match=re.escape(sentence)) as refused:
        read_texts(path, model, min_agreement=0.8, confidence=0.975, truncate=False)
    assert str(path) in str(refused.value)
