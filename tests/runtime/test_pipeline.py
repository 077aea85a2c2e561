"""Tokenizers that do too much are refused in one sentence; long texts cost no more than what fits."""

import json
import random
import shutil
import string
from pathlib import Path
from typing import Any, Literal

import pytest
import tiny
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from attenuator import bundle
from attenuator.errors import BundleError, InputTooLong, InvalidRequest
from attenuator.runtime.check import check_bundle
from attenuator.runtime.pipeline import PUBLISHED, check_pattern, splits_at
from attenuator.runtime.tokens import MAX_UNBROKEN, TextEncoder

TEMPLATE = json.loads(tiny.tokenizer().to_str())["post_processor"]
FIRST, SECOND = ({"Sequence": {"id": name, "type_id": index}} for index, name in enumerate("AB"))
CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}


def normalizer(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(parts)}}


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def template(**changes: Any) -> dict[str, Any]:
    return {"post_processor": TEMPLATE | changes}


def special(*ids: int) -> dict[str, Any]:
    row = {"id": "[CLS]", "ids": list(ids), "tokens": ["[CLS]"] * len(ids)}
    return template(single=[CLS, FIRST], special_tokens=TEMPLATE["special_tokens"] | {"[CLS]": row})


BPE = {"type": "BPE", "dropout": 0.5, "vocab": {"a": 0, "b": 1}, "merges": []}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "multiplies": (normalizer(replace("a", "a" * 1000)), "can make a text 1e+03 times as long"),
    "multiplies by classes": (normalizer(replace("[a-z]", "x" * 12, "Regex")), "12 times as long"),
    "doubles ten times": (normalizer(*[replace("a", "aa")] * 10), "can make a text 1.02e+03 times"),
    "hides in a sequence": (normalizer(normalizer(replace("a", "a" * 99))["normalizer"]), "99 times as long"),
    "replaces nothing": (normalizer(replace("", "x")), "an empty pattern"),
    "replaces anything": (normalizer(replace(".*", "x", "Regex")), "the pattern '.*'"),
    "prepends much": (normalizer({"type": "Prepend", "prepend": "x" * 10**5}), "prepends 100000 characters"),
    "many parts": (normalizer(*[{"type": "NFD"}] * 100), "101 parts in its normalizer"),
    "unknown kind": ({"pre_tokenizer": {"type": "FixedLength", "length": 1}}, "a pre_tokenizer of type 'FixedLength'"),
    "draws lots": ({"model": BPE}, "dropout"),
    "long words": ({"model": {"max_input_chars_per_word": 10**9}}, "max_input_chars_per_word 1000000000"),
    "repeats the text": (template(single=[FIRST] * 1000), "must name each of A once"),
    "repeats one of a pair": (
        template(pair=[FIRST, FIRST, SECOND]),
        "names A, A, B, must name each of A and B once",
    ),
    "drops the text": (template(single=[CLS]), "template 'single' that names no text"),
    "adds a thousand": (template(single=[CLS] * 1000 + [FIRST]), "1000 special tokens, must be at most 64"),
    "adds a long token": (special(*[2] * 1000), "1000 special tokens, must be at most 64"),
    "adds an unknown token": (special(10**6), "adds token id 1000000, must be below vocab_size"),
    "unknown type": (template(single=[{"Sequence": {"id": "A", "type_id": 9}}]), "model.onnx fails on a text"),
    "pair of processors": ({"post_processor": {"type": "BertProcessing", "sep": ["", 99], "cls": ["", 2]}}, "id 99"),
}


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_hostile_tokenizer(bundles: dict[str, Path], tmp_path: Path, case: tuple[dict[str, Any], str]) -> None:
    changes, phrase = case
    folder = Path(shutil.copytree(bundles["softmax"], tmp_path / "bundle"))
    raw = json.loads((folder / bundle.TOKENIZER).read_text())
    if "max_input_chars_per_word" in changes.get("model", {}):
        changes = {"model": raw["model"] | changes["model"]}
    (folder / bundle.TOKENIZER).write_text(json.dumps(raw | changes))
    tiny.sign(folder)
    with pytest.raises(BundleError) as caught:
        check_bundle(folder)
    assert phrase in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "pattern",
    [r"(a+)+$", r"(a|aa)+$", r"a*a*b", r"a?a?aa", r"\s+$", r"(?=(a+))\1", r"(.)\1", r"(?<=a)b", r"^a", r"", r"a{1,9}b+"]
    + ["a" * 1000, "[" + r"\p{L}" * 38 + "]+("],
)
def test_pattern_that_could_backtrack(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        check_pattern({"Regex": pattern})


@pytest.mark.parametrize(
    "pattern", [r" {2,}", r"\s+", r"\p{N}", r"[^\s\p{L}]+|\p{L}+", r"-", r"\.", "▁+", *sorted(PUBLISHED)]
)
def test_pattern_that_takes_linear_time(pattern: str) -> None:
    assert check_pattern({"Regex": pattern}) == 1


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("▁", -2.0), *((f"▁{word}", -3.0) for word in tiny.WORDS)]
    tokenizer = Tokenizer(
        models.Unigram([*pieces, *((letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyz")], unk_id=0)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def byte_level() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate([*letters, "th", "Ġa", "oo"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("t", "h"), ("Ġ", "a"), ("o", "o")]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<mask> <mask>", "<pad>"])
    return tokenizer


def replacing() -> Tokenizer:
    """One that takes what stands in HTML and in treebanks for something else, as those of the examples do."""
    tokenizer = tiny.tokenizer()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("<br />", " "), normalizers.Replace("!!", "good"), tokenizer.normalizer]
    )
    return tokenizer


PIPELINES = {"wordpiece": tiny.tokenizer, "replacing": replacing, "unigram": unigram, "byte level": byte_level}
TEXTS = {
    "words": "good film, the a " * 1000,
    "spaces": ("plot" + " " * 60) * 150 + "bad",
    "marks": "e\u0301 \u0301x \ufdfa na\u00efve n't\t" * 400,
    "ideographs": "\u6f22\u5b57\u3002" * 2500,
    "special tokens": "[SEP]<mask> <mask> film <pad>" * 400,
    "no end of word": "a" * 60000,
    "punctuation": '"!,_(' * 3000,
    "exclamation marks": "!" * 59_999,
    "tabs": "good\tfilm.plot\r" * 1000,
    "html": "good<br />film!!!" * 900,
    "lines": "term\r\n\nlaw\u2028shall " * 800,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("kind", PIPELINES)
@pytest.mark.parametrize("side", ["right", "left"])
def test_far_too_long_texts_are_cut_where_the_whole_would_be(
    side: Literal["left", "right"], kind: str, text: str, tmp_path: Path
) -> None:
    tokenizer = PIPELINES[kind]()
    tokenizer.save(str(tmp_path / bundle.TOKENIZER))
    encoder = TextEncoder(tmp_path / bundle.TOKENIZER, max_tokens=20, vocab_size=1000, truncation_side=side)
    whole = tokenizer.encode(text)
    if len(whole) <= 20:
        assert encoder.encode(text, None, truncate=False, param="text").token_ids.tolist() == whole.ids
        return
    tokenizer.enable_truncation(20, direction=side)
    cut = encoder.encode(text, None, truncate=True, param="text")
    assert cut.token_ids.tolist() == tokenizer.encode(text).ids
    assert 0 < cut.truncated <= len(whole) - 20
    with pytest.raises(InputTooLong, match="text has (more than )?[0-9]+ tokens, must have at most 20"):
        encoder.encode(text, None, truncate=False, param="text")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", PIPELINES)
def test_random_texts_are_cut_where_the_whole_would_be(
    side: Literal["left", "right"], kind: str, tmp_path: Path
) -> None:
    draw = random.Random(f"{kind} {side}")
    tokenizer = PIPELINES[kind]()
    tokenizer.save(str(tmp_path / bundle.TOKENIZER))
    encoder = TextEncoder(tmp_path / bundle.TOKENIZER, max_tokens=20, vocab_size=1000, truncation_side=side)
    tokenizer.enable_truncation(20, direction=side)
    pieces = [*tiny.WORDS, *string.punctuation, *" \t\r\n", "<br />", "!!", "n't", "\u6f22\u3002", "e\u0301", "\u2260"]
    for _ in range(20):
        text = "".join(draw.choices(draw.sample(pieces, 9), k=12_000)) + "x"
        assert encoder.encode(text, None, truncate=True, param="text").token_ids.tolist() == tokenizer.encode(text).ids


@pytest.mark.parametrize("text", ["!", '"', "good,film,", "_"])
@pytest.mark.parametrize("pair", [None, "good " * 10])
def test_four_million_characters_without_a_space_are_not_tokenized_whole(
    text: str, pair: str | None, tmp_path: Path
) -> None:
    tiny.tokenizer().save(str(tmp_path / bundle.TOKENIZER))
    encoder = TextEncoder(tmp_path / bundle.TOKENIZER, max_tokens=512, vocab_size=1000)
    text *= 4 * 2**20 // len(text)
    for first, second in [(text, pair), *([(pair, text)] if pair else [])]:
        assert encoder.encode(first, second, truncate=True, param="text").truncated < 100_000
        with pytest.raises(InputTooLong, match="has more than 512 tokens, must have at most 512, or set truncate"):
            encoder.encode(first, second, truncate=False, param="text")


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("kind", "character"), [("wordpiece", "a"), ("replacing", "!"), ("byte level", "!")])
def test_a_stretch_without_a_place_to_cut_it_is_refused(
    kind: str, character: str, truncate: bool, tmp_path: Path
) -> None:
    PIPELINES[kind]().save(str(tmp_path / bundle.TOKENIZER))
    encoder = TextEncoder(tmp_path / bundle.TOKENIZER, max_tokens=20, vocab_size=1000)
    long = character * (MAX_UNBROKEN + 1)
    sentence = f"has more than {MAX_UNBROKEN} characters in a row without a space or another place to cut it"
    for texts, name in [((long, None), "inputs[0].text"), (("good", f"bad {long} bad"), "inputs[0].text_pair")]:
        with pytest.raises(InvalidRequest) as caught:
            encoder.encode(*texts, truncate=truncate, param="inputs[0].text")
        assert (caught.value.param, str(caught.value).startswith(f"{name} {sentence}")) == (name, True)
    assert encoder.encode("good " * 9999 + long, None, truncate=True, param="text").truncated, "cut before it"
    assert encoder.encode(long[1:] + " a", None, truncate=True, param="text")


def test_a_text_of_two_million_words_is_not_tokenized_whole(tmp_path: Path) -> None:
    tiny.tokenizer().save(str(tmp_path / bundle.TOKENIZER))
    encoder = TextEncoder(tmp_path / bundle.TOKENIZER, max_tokens=512, vocab_size=1000)
    assert encoder.encode("good " * 2_000_000, None, truncate=True, param="text").truncated < 100_000
    with pytest.raises(InputTooLong, match="text has more than 512 tokens, must have at most 512, or set truncate"):
        encoder.encode("good " * 2_000_000, None, truncate=False, param="text")
    spaced = "good" + " " * 100_000 + "film"
    assert len(encoder.encode(spaced, None, truncate=False, param="text").token_ids) == 4


@pytest.mark.parametrize(
    ("pre_tokenizer", "splits"),
    [
        (pre_tokenizers.BertPreTokenizer(), True),
        (pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.WhitespaceSplit()]), True),
        (pre_tokenizers.Split(Regex(r"\s+"), "isolated"), True),
        (pre_tokenizers.ByteLevel(use_regex=False), False),
        (pre_tokenizers.Metaspace(split=False), False),
        (pre_tokenizers.Punctuation(), False),
    ],
)
def test_what_splits_at_spaces(pre_tokenizer: Any, splits: bool) -> None:
    assert bool(splits_at(json.loads(pre_tokenizer.__getstate__()))) == splits
