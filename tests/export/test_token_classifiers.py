"""Token classifiers of every family and kind of tokenizer: the entities are those of transformers' pipeline."""

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import transformers
from checkpoints import CHECKPOINTS, SPECIAL, TEXTS, bert, fast_tokenizer, randomise
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import attenuator
from attenuator.classify_request import Aggregation
from attenuator.errors import ExportError, InvalidRequest
from attenuator.export import export
from attenuator.export.families import FAMILIES
from attenuator.local import LocalModel

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "I-made-up"]
SCRIPTS = [
    "Maria Santos of New York, born 3/5/1980: call +1 415-555-0132!",
    "Η Μαρία ζει στην Αθήνα, Ναύπακτος.",
    "山田太郎は東京に住んでいます。",
    "ماريا تعيش في القاهرة",
    "मारिया दिल्ली में रहती है 🎉👩‍👩‍👧 ok",
    "Überraschung in Köln\tund  zwei Leerzeichen\n e\u0301te\u0301 \ufb01n",
    "x",
    "a [SEP] b [UNK]c <unk> d",
    *TEXTS,
]
LAYOUTS = {family.layout: family.model_type for family in reversed(FAMILIES) if family.model_type in CHECKPOINTS}
NAMES = sorted({*LAYOUTS.values(), "deberta-v2-convolution"})
# That no layer computes the first row alone, and what differs from layer to layer: windows, and shared weights.
SEVERAL_LAYERS = {"bert", "modernbert", "albert", "longformer"}
ATTENTION = {"yoso": "yoso", "nystromformer": "nystrom", "big_bird": "bigbird"}


def labelled(config: Any) -> Any:
    own = deepcopy(config)
    own.id2label = dict(enumerate(LABELS))
    own.label2id = {label: place for place, label in enumerate(LABELS)}
    own.num_labels = len(LABELS)
    own.problem_type = None
    return own


def saved(folder: Path, config: Any, tokenizer: Any) -> Path:
    transformers.utils.logging.disable_progress_bar()
    model: Any = transformers.AutoModelForTokenClassification.from_config(labelled(config))
    randomise(model)
    model.eval()
    with torch.no_grad():  # so that every label occurs
        model.classifier.weight *= 5
        model.classifier.bias -= model(input_ids=torch.arange(5, 69)[None]).logits.mean(dim=(0, 1))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def pipeline_of(folder: Path) -> Any:
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.TokenClassificationPipeline(model=model, tokenizer=tokenizer)


def assert_equal(here: LocalModel, pipeline: Any, texts: list[str]) -> None:
    for aggregation in get_args(Aggregation):
        answer = here.classify(texts, aggregation=aggregation)
        total = 0
        for text, prediction in zip(texts, answer.predictions, strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = pipeline(text, aggregation_strategy=aggregation)
            total += len(expected)
            name = "entity" if aggregation == "none" else "entity_group"
            places = [(each[name], each["start"], each["end"]) for each in expected]
            ours = prediction.entities
            assert [(each.label, each.start, each.end) for each in ours] == places, (aggregation, text)
            assert [each.score for each in ours] == pytest.approx([float(each["score"]) for each in expected], abs=2e-5)
            # The words of other aggregations are decoded twice there, which loses spaces and spoils letters.
            if aggregation in ("none", "simple"):
                words = [each["word"] for each in expected]
                assert [each.word.strip() for each in ours] == [word.strip() for word in words]
            if ours:
                best = max(ours, key=lambda each: each.score)
                assert (prediction.label, prediction.score) == (best.label, best.score)
        assert total


@pytest.mark.parametrize("name", NAMES)
def test_every_layout(name: str, tmp_path: Path) -> None:
    config = deepcopy(CHECKPOINTS[name].config)
    if name not in SEVERAL_LAYERS:
        config.num_hidden_layers = 1
    folder = saved(tmp_path / "checkpoint", config, fast_tokenizer())
    family = config.model_type
    manifest = export(str(folder), output=tmp_path / "bundle", attention=ATTENTION.get(family, "softmax"))
    assert (manifest.task, manifest.pooling, manifest.labels) == ("token_classification", "none", LABELS)
    assert "keep" not in [knob.name for knob in manifest.knobs]
    assert "pool" not in manifest.attention.other_nodes
    with attenuator.load(tmp_path / "bundle", threads=1) as here:
        if family in ATTENTION:  # the pipeline approximates: export has compared them with the exact value
            here.model.knobs = here.model.knobs.exact_by_default()
            assert any(prediction.entities for prediction in here.classify(TEXTS).predictions)
            return
        short = [text for text in SCRIPTS if len(here.model.encode(text).token_ids) < 60]
        assert_equal(here, pipeline_of(folder), short)


def pieces(kind: str) -> Tokenizer:
    """A trained tokenizer, as the model families have them."""
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=160, special_tokens=SPECIAL)
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=SPECIAL, unk_token="[UNK]")
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "bytes-prefixed")
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([*SCRIPTS, *TEXTS] * 3, trainer)
    if kind.startswith("bytes"):
        tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2), trim_offsets=True)
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return tokenizer


Made = tuple[LocalModel, Any]


@pytest.fixture(scope="module", params=["wordpiece", "unigram", "bytes", "bytes-prefixed"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A bundle in this process and the pipeline of its checkpoint, by kind of tokenizer."""
    base = tmp_path_factory.mktemp(request.param)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=False))
    inner = pieces(request.param)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=300, **names)
    config = bert(vocab_size=inner.get_vocab_size(), max_position_embeddings=300, num_hidden_layers=1)
    folder = saved(base / "checkpoint", config, tokenizer)
    export(str(folder), output=base / "bundle")
    with attenuator.load(base / "bundle", threads=1) as here:
        yield here, pipeline_of(folder)


def test_every_kind_of_tokenizer(both: Made) -> None:
    assert_equal(*both, SCRIPTS)


def test_the_places_are_those_of_the_callers_text(both: Made) -> None:
    here, _ = both
    for text in SCRIPTS:
        [prediction] = here.classify(text).predictions
        for entity in prediction.entities:
            assert 0 <= entity.start <= entity.end <= len(text)
            if here.model.encoder.content()["model"]["type"] != "BPE":  # which has tokens of a space alone
                assert entity.start < entity.end


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_that_was_cut_has_the_places_of_the_whole(both: Made, side: Any, tmp_path: Path) -> None:
    here, _ = both
    encoder = here.model.encoder
    text = " ".join(SCRIPTS[:2] * 400)
    before, encoder.truncation_side = encoder.truncation_side, side
    try:
        cut = encoder.encode(text, None, truncate=True, param="inputs")
    finally:
        encoder.truncation_side = before
    whole = encoder.windows(text, None, size=300, stride=None, most=10**6, param="inputs")
    starts = np.concatenate([one.spans.starts for one in whole])
    ids = np.concatenate([one.spans.token_ids for one in whole])
    kept = slice(0, 298) if side == "right" else slice(-298, None)
    assert cut.spans.token_ids.tolist() == ids[kept].tolist()
    assert cut.spans.starts.tolist() == starts[kept].tolist()


@pytest.mark.parametrize(("join", "stride"), [("mean", 7), ("max", 20), ("first", None), ("mean", None)])
def test_windows_join_the_scores_of_each_token(both: Made, join: Any, stride: int | None) -> None:
    here, _ = both
    text = " ".join(SCRIPTS)
    size, room = 40, 38
    answer = here.classify(text, join=join, window=size, stride=stride, aggregation="none")
    step = stride or room
    rows = here.model.encoder.windows(text, None, size=size, stride=stride, most=10**6, param="inputs")
    rows = rows[: 1 if join == "first" else None]
    by_token: dict[int, list[Any]] = {}
    for number, row in enumerate(rows):
        [result] = here.model.run([attenuator.runtime.Row(row.token_ids, row.type_ids, {})])
        scores = here.model.scores(result.logits)[1:-1]
        for place, own in enumerate(scores):
            by_token.setdefault(number * step + place, []).append(own)
    merge: Callable[..., Any] = np.max if join == "max" else np.mean
    merged = [merge(by_token[place], axis=0) for place in range(len(by_token))]
    labels = [LABELS[own.argmax()] for own in merged]
    starts = {
        number * step + place: int(start)
        for number, row in enumerate(rows)
        for place, start in enumerate(row.spans.starts)
    }
    found = [(labels[place], starts[place]) for place in range(len(merged)) if labels[place] != "O"]
    ours = answer.predictions[0].entities
    assert [(each.label, each.start) for each in ours] == found
    scores = [own.max() for own, label in zip(merged, labels, strict=True) if label != "O"]
    assert [each.score for each in ours] == pytest.approx(scores, abs=1e-9)
    assert answer.tokens[0] == sum(len(row.token_ids) for row in rows)


def test_one_window_is_the_whole_text_and_inputs_apart_are_those_together(both: Made) -> None:
    here, _ = both
    whole = here.classify(SCRIPTS).predictions
    assert here.classify(SCRIPTS, join="mean").predictions == whole
    each = here.classify_each([*SCRIPTS, " ", {"token_ids": [2, 5, 3]}, ("a", "b")])
    assert [one.predictions[0] for one in each[: len(SCRIPTS)]] == list(whole)
    for refusal, sentence in zip(
        each[len(SCRIPTS) :], ["is empty", "is token ids", "is the first text of a pair"], strict=True
    ):
        assert isinstance(refusal, InvalidRequest)
        assert sentence in str(refusal)


@pytest.mark.parametrize(
    ("config", "attentions"),
    [(bert(num_hidden_layers=1), ("mca",)), (CHECKPOINTS["longformer"].config, CHECKPOINTS["longformer"].attentions)],
    ids=["bert", "longformer"],
)
def test_int8_answers_entities_and_other_attention_those_of_softmax(
    config: Any, attentions: tuple[str, ...], tmp_path: Path
) -> None:
    folder = saved(tmp_path / "checkpoint", config, fast_tokenizer())
    pipeline = pipeline_of(folder)
    for options in ({"precision": "int8"}, *({"attention": attention} for attention in attentions)):
        output = tmp_path / "-".join(options.values())
        manifest = export(str(folder), output=output, **options)
        with attenuator.load(output, threads=1) as here:
            exact = {knob.name: knob.exact for knob in manifest.knobs}
            text = TEXTS[0]
            ours = here.classify(text, aggregation="none", **exact).predictions[0].entities
            assert ours
            if manifest.precision == "fp32":
                expected = [(each["start"], each["entity"]) for each in pipeline(text)]
                assert [(each.start, each.label) for each in ours] == expected


def test_what_cannot_be_asked_of_a_token_classifier(both: Made, tmp_path: Path) -> None:
    here, _ = both
    for fields, sentence in (
        ({"top_k": 2}, "top_k is 2, must be left out"),
        ({"return_logits": True}, "return_logits is true, must be left out"),
        ({"explain": True}, "explain is true, must be left out"),
        ({"keep": 0.5}, "has no knob keep"),
        ({"aggregation": "sum"}, "aggregation is 'sum', must be"),
        ({"candidate_labels": ["a"]}, "candidate_labels"),
        ({"min_agreement": 0.9}, "needs a calibration"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            here.classify("a text", **fields)
    folder = saved(tmp_path / "checkpoint", bert(), fast_tokenizer())
    with pytest.raises(ExportError, match="it classifies every token, so that all go on"):
        export(str(folder), output=tmp_path / "bundle", schedule="rising")
