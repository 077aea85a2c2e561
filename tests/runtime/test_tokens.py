"""Texts to token ids, against the tokenizers package's own truncation."""

import threading
from pathlib import Path
from typing import Any

import pytest
import tiny
from tokenizers import Tokenizer

from attenuator import bundle
from attenuator.errors import InputTooLong, InvalidRequest
from attenuator.runtime.tokens import TextEncoder

WORDS = tiny.WORDS


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokens") / bundle.TOKENIZER
    tiny.tokenizer().save(str(file))
    return file


def encoder(path: Path, max_tokens: int, **settings: Any) -> TextEncoder:
    return TextEncoder(path, max_tokens=max_tokens, vocab_size=len(tiny.VOCAB), **settings)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_tokens", [3, 4, 7, 8, 20])
@pytest.mark.parametrize("lengths", [(1, 0), (30, 0), (3, 30), (30, 3), (30, 30), (9, 10), (6, 5), (1, 1)])
def test_truncation_is_that_of_the_tokenizers_package(
    path: Path, max_tokens: int, lengths: tuple[int, int], side: str
) -> None:
    text, pair = (" ".join(WORDS[i % len(WORDS)] for i in range(length)) for length in lengths)
    theirs = Tokenizer.from_file(str(path))
    theirs.enable_truncation(max_tokens, strategy="longest_first", direction=side)
    expected = theirs.encode(text, pair or None)
    ours = encoder(path, max_tokens, truncation_side=side).encode(text, pair or None, truncate=True, param="text")
    assert ours.token_ids.tolist() == expected.ids
    assert ours.type_ids.tolist() == expected.type_ids
    whole = tiny.tokenizer().encode(text, pair or None)
    assert ours.truncated == max(0, len(whole) - max_tokens)


def test_truncation_changes_nothing_for_the_next_text(path: Path) -> None:
    one = encoder(path, 5)
    before = one.encode("good film", None, truncate=False, param="text").token_ids.tolist()
    one.encode("good " * 50, None, truncate=True, param="text")
    assert one.encode("good film", None, truncate=False, param="text").token_ids.tolist() == before
    with pytest.raises(InputTooLong, match=r"^text has 52 tokens, must have at most 5, or set truncate$"):
        one.encode("good " * 50, None, truncate=False, param="text")


@pytest.mark.parametrize(("text", "pair"), [("good film plot", None), ("good film", "plot")])
def test_max_tokens_is_the_longest_that_is_taken(path: Path, text: str, pair: str | None) -> None:
    count = len(encoder(path, 99).encode(text, pair, truncate=False, param="text").token_ids)
    assert len(encoder(path, count).encode(text, pair, truncate=False, param="text").token_ids) == count
    with pytest.raises(InputTooLong, match=f"has {count} tokens, must have at most {count - 1}"):
        encoder(path, count - 1).encode(text, pair, truncate=False, param="text")


def test_ids_are_taken_up_to_max_tokens_and_below_the_vocabulary(path: Path) -> None:
    one, last = encoder(path, 3), len(tiny.VOCAB) - 1
    assert len(one.from_ids([0, 1, last], param="token_ids").token_ids) == 3
    assert one.from_ids([0.0, float(last)], param="token_ids").token_ids.tolist() == [0, last]
    with pytest.raises(InputTooLong, match=r"^token_ids has 4 tokens, must have at most 3$"):
        one.from_ids([5] * 4, param="token_ids")
    for ids in ([0, last + 1], [0, -1], [0, True], [0, 1.5], [0.0, float(last + 1)], [0.0, -1]):
        with pytest.raises(InvalidRequest, match=rf"^token_ids\[1\] is .*, must be whole numbers from 0 to {last}$"):
            one.from_ids(ids, param="token_ids")
    with pytest.raises(InvalidRequest, match="^token_ids is empty"):
        one.from_ids([], param="token_ids")


@pytest.mark.parametrize(("pair", "named"), [(None, "inputs[1].text"), ("bad plot", "inputs[1]")])
def test_too_long_names_the_text_or_the_pair(path: Path, pair: str | None, named: str) -> None:
    with pytest.raises(InputTooLong) as caught:
        encoder(path, 5).encode("good " * 9, pair, truncate=False, param="inputs[1].text")
    assert caught.value.param == named
    assert str(caught.value).startswith(f"{named} has ")


def test_settings_saved_in_the_file_are_ignored(tmp_path: Path) -> None:
    saved = tiny.tokenizer()
    saved.enable_truncation(4)
    saved.enable_padding(length=64)
    saved.save(str(tmp_path / bundle.TOKENIZER))
    encoded = encoder(tmp_path / bundle.TOKENIZER, 100).encode("good " * 20, None, truncate=False, param="text")
    assert len(encoded.token_ids) == 22


@pytest.mark.parametrize(
    ("text", "pair", "param", "sentence"),
    [
        ("", None, "inputs[1].text", "is empty"),
        (" \t\n", None, "inputs[1].text", "is empty"),
        ("good", "", "inputs[1].text_pair", "is empty"),
        ("a\ud800", None, "inputs[1].text", "surrogate pair at character 1"),
        ("good", "\udfff", "inputs[1].text_pair", "surrogate"),
    ],
)
def test_text_that_is_none_is_refused_by_name(
    path: Path, text: str, pair: str | None, param: str, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence) as caught:
        encoder(path, 10).encode(text, pair, truncate=True, param="inputs[1].text")
    assert caught.value.param == param


def test_ids_are_used_as_given(path: Path) -> None:
    encoded = encoder(path, 10).from_ids([0, 5, len(tiny.VOCAB) - 1], param="token_ids")
    assert encoded.token_ids.tolist() == [0, 5, len(tiny.VOCAB) - 1]
    assert encoded.type_ids.tolist() == [0, 0, 0]
    assert encoded.truncated == 0


def test_any_unicode_is_taken(path: Path) -> None:
    one = encoder(path, 200)
    for text in ("\U0001f600" * 3, "日本語", "\u200b\u200bgood", "a\u0301", "\x00good", "[SEP] [CLS]", "good\r\nfilm"):
        assert len(one.encode(text, None, truncate=False, param="text").token_ids) >= 2


def test_threads_share_one_encoder(path: Path) -> None:
    one = encoder(path, 12)
    texts = [" ".join(WORDS[: 1 + i % 19]) for i in range(40)]
    expected = [one.encode(text, None, truncate=True, param="text").token_ids.tolist() for text in texts]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            for index, text in enumerate(texts):
                if one.encode(text, None, truncate=True, param="text").token_ids.tolist() != expected[index]:
                    wrong.append(index)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
