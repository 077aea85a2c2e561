"""Zero-shot classification gives the scores of transformers' pipeline, whatever the labels and the script."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from checkpoints import bert, randomise
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import attenuator
from attenuator.errors import InvalidRequest
from attenuator.export import export
from attenuator.local import LocalModel

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [
    "The team has won the cup after a long night.",
    "Το δημοτικό συμβούλιο αποφάσισε για τον προϋπολογισμό.",
    "株価は三日連続で下がった。",
    "رئيس الوزراء يزور العاصمة غدا",
    "भारत ने मैच जीता 🏏🎉",
    "x",
]
LABELS = ["sports", "πολιτική", "経済", "سياسة", "🏏", "sport and politics", "{}", "a {brace}", "Sports"]
OTHER_TEMPLATE = "Esto trata de {}, ¿no?"
NAMES = {
    "three": ["contradiction", "neutral", "entailment"],
    "first": ["ENTAILMENT", "neutral", "contradiction"],
    "middle": ["contradiction", "Entailed", "neutral"],
    "two": ["entailment", "not_entailment"],
    "last": ["not_entailment", "entailment"],
}
Ask = Callable[..., list[dict[str, Any]]]


def byte_tokenizer() -> Any:
    """One token a byte, so that no script and no emoji is unknown; pairs as BERT marks them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: id for id, piece in enumerate([*SPECIAL, *alphabet])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=False))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Path]]:
    """Checkpoint and bundle of a small random encoder, by its number of labels."""
    base, both = tmp_path_factory.mktemp("nli"), {}
    for count, names in ((3, NAMES["three"]), (2, NAMES["two"])):
        labels = dict(enumerate(names))
        shape = {"vocab_size": 270, "max_position_embeddings": 300, "num_hidden_layers": 1}
        config = bert(**shape, id2label=labels, num_labels=count)
        model: Any = transformers.AutoModelForSequenceClassification.from_config(config)
        randomise(model)
        checkpoint, bundle = base / f"checkpoint{count}", base / f"bundle{count}"
        model.save_pretrained(checkpoint)
        byte_tokenizer().save_pretrained(checkpoint)
        export(str(checkpoint), attention="mca", output=bundle)
        both[count] = checkpoint, bundle
    return both


@pytest.fixture(scope="module", params=NAMES)
def both(request: pytest.FixtureRequest, made: dict[int, tuple[Path, Path]], tmp_path_factory: Any) -> Iterator[Any]:
    """A bundle in this process, and transformers' pipeline over the checkpoint, with the same names of labels."""
    names = NAMES[request.param]
    checkpoint, bundle = made[len(names)]
    named = tmp_path_factory.mktemp("named") / "bundle"
    shutil.copytree(bundle, named)
    tiny.sign(named, labels=names)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint, dtype=torch.float32).eval()
    model.config.label2id = {name: place for place, name in enumerate(names)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    with attenuator.load(named, threads=1) as here:
        yield here, transformers.ZeroShotClassificationPipeline(model=model, tokenizer=tokenizer)


@pytest.mark.parametrize("labels", [LABELS, LABELS[:2], LABELS[4:5]], ids=len)
@pytest.mark.parametrize("fields", [{}, {"multi_label": True}, {"hypothesis_template": OTHER_TEMPLATE}], ids=str)
def test_the_scores_are_those_of_the_pipeline(both: Any, labels: list[str], fields: dict[str, Any]) -> None:
    here, pipeline = both
    exact = here.model.knobs.exact()
    answer = here.classify(TEXTS, candidate_labels=labels, **fields, **exact)
    for text, prediction in zip(TEXTS, answer.predictions, strict=True):
        expected = pipeline(text, candidate_labels=labels, **fields)
        scores = {each.label: each.score for each in prediction.scores}
        assert scores == pytest.approx(dict(zip(expected["labels"], expected["scores"], strict=True)), abs=1e-5, rel=0)
        assert [*scores.values()] == sorted(scores.values(), reverse=True)
        assert (prediction.label, prediction.score) == next(iter(scores.items()))
        chosen = [label for label in labels if scores[label] >= 0.5]
        assert prediction.labels == (tuple(chosen) if fields.get("multi_label") else None)


ONE = pytest.mark.parametrize("both", ["three"], indirect=True)


@ONE
def test_a_text_has_the_answer_that_it_has_alone(both: Any) -> None:
    here: LocalModel = both[0]
    fields: dict[str, Any] = {"candidate_labels": LABELS, "alpha": 0.4, "seed": 7, "return_logits": True}
    together = here.classify(TEXTS, **fields)
    alone = [here.classify([text], **fields) for text in TEXTS]
    assert together.predictions == tuple(each.predictions[0] for each in alone)
    assert together.tokens == tuple(each.tokens[0] for each in alone)
    assert together.value_flops == tuple(each.value_flops[0] for each in alone)
    each = here.classify_each(TEXTS, **fields)
    assert [one.predictions for one in each if not isinstance(one, InvalidRequest)] == [
        one.predictions for one in alone
    ]
    assert here.classify(TEXTS, **fields | {"candidate_labels": tuple(LABELS)}).predictions == together.predictions
    pairs = [(TEXTS[0], f"This example is {label}.") for label in LABELS]
    rows = here.classify(pairs, alpha=0.4, seed=7)
    assert sum(rows.tokens) == together.tokens[0]
    assert sum(rows.value_flops) / len(LABELS) == pytest.approx(together.value_flops[0])


@ONE
def test_as_many_labels_as_there_may_be_and_more_pairs_than_a_service_takes(both: Any) -> None:
    labels = [f"label {number}" for number in range(1000)]
    for prediction in both[0].classify(["a text", "b"], candidate_labels=labels, top_k=1000).predictions:
        assert sum(each.score for each in prediction.scores) == pytest.approx(1)
        assert {each.label for each in prediction.scores} == set(labels)


@ONE
def test_a_long_text_is_cut_only_when_asked_and_its_hypothesis_never(both: Any) -> None:
    here, pipeline = both
    text = "a long night " * 60
    with pytest.raises(
        InvalidRequest, match=r"inputs has \d+ tokens, must have at most 300, candidate_labels\[0\] incl"
    ):
        here.classify(text, candidate_labels=LABELS)
    pipeline.tokenizer.model_max_length = 300
    for labels in (LABELS[:3], ["a short day " * 20, "another one " * 16, "x"]):
        cut = here.classify(text, candidate_labels=labels, truncate=True, **here.model.knobs.exact())
        expected = pipeline(text, candidate_labels=labels)
        scores = {each.label.strip(): each.score for each in cut.predictions[0].scores}
        names = [label.strip() for label in expected["labels"]]
        assert scores == pytest.approx(dict(zip(names, expected["scores"], strict=True)), abs=1e-5, rel=0)
    with pytest.raises(InvalidRequest, match=r"candidate_labels\[1\] has \d+ tokens, must .* 300, inputs included$"):
        here.classify(text, candidate_labels=["x", "a day " * 60], truncate=True)
