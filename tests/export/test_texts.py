"""Texts through the bundle's tokenizer get what `model(**tokenizer(text))` gives in PyTorch."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkpoints import CHECKPOINTS, Checkpoint, fast_tokenizer, load, save
from checkpoints import TEXTS as SENTENCES
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from attenuator.bundle import read_manifest
from attenuator.errors import ExportError
from attenuator.export import export
from attenuator.runtime import Row
from attenuator.runtime import load as serve

LONG = "a film so bad that it is good again " * 20
TEXTS: list[tuple[str, str | None]] = [
    ("a film so bad", None),
    ("x [PAD] y[PAD]z", None),
    ("[PAD]", "[SEP] 42 [CLS] [UNK]"),
    ("the  quick\n\tbrown <pad> fox </s> ", "<s>\u3000ﬁlm<mask>"),
    ("one ☃ unknown", "☃"),  # [UNK] has the id 1, which RoBERTa takes for padding
    (LONG, None),
    (LONG, "42 tokens"),
]


def differences(checkpoint: Path, tokenizer: Any, bundle: Path) -> list[float]:
    """Largest difference of a logit to PyTorch's own pipeline, for each text."""
    served, eager = serve(bundle, check=False), load(checkpoint)
    largest = []
    for text, pair in TEXTS:
        encoded = served.encode(text, pair, truncate=True)
        [result] = served.run([Row(encoded.token_ids, encoded.type_ids, served.knobs.exact())])
        inputs = tokenizer(text, pair, truncation=True, max_length=served.manifest.max_tokens, return_tensors="pt")
        with torch.inference_mode():
            expected = eager(**inputs).logits[0].numpy()
        largest.append(float(np.abs(result.logits - expected).max()))
    return largest


@pytest.mark.parametrize("name", ["bert", "roberta", "camembert", "modernbert"])
def test_special_tokens_spelled_out_in_a_text(
    name: str, exported: Callable[[str, str], Path], checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert max(differences(folder, tokenizer, exported(name, "mca"))) < 1e-5


WORDS = sorted({word for text in SENTENCES for word in text.split()})
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?"
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
PIECES = [(f"\u2581{word}", -2.0 - index / 10) for index, word in enumerate(WORDS)]
PIECES += [(letter, -7.0) for letter in f"\u2581{LETTERS}"]


def mpnet_tokenizer() -> Any:
    tokens = ["<s>", "<pad>", "</s>", "[UNK]", *WORDS, *(f"##{letter}" for letter in LETTERS), "<mask>"]
    return transformers.MPNetTokenizer(vocab={token: index for index, token in enumerate(tokens)})


def deberta_tokenizer() -> Any:
    """SentencePiece's Unigram as the class of transformers rebuilds it."""
    pieces = [(token, 0.0) for token in SPECIAL[:4]] + PIECES + [("[MASK]", 0.0)]
    return transformers.DebertaV2Tokenizer(vocab=pieces, unk_id=3)


def byte_tokenizer() -> Any:
    """The same as converted from DeBERTa-v3's own file: unknown characters become bytes."""
    pieces = [(token, 0.0) for token in SPECIAL] + PIECES + [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Strip(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]"
    )


@pytest.mark.parametrize(
    ("name", "make"),
    [("mpnet", mpnet_tokenizer), ("deberta-v2", deberta_tokenizer), ("deberta-v2", byte_tokenizer)],
    ids=["mpnet", "unigram", "unigram-bytes"],
)
def test_tokenizers_of_their_families(name: str, make: Callable[[], Any], tmp_path: Path) -> None:
    config = copy.deepcopy(CHECKPOINTS[name].config)
    config.num_hidden_layers = 1
    config.vocab_size = len(make())
    folder = save(Checkpoint(config), tmp_path / "checkpoint")
    make().save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    bundle = tmp_path / "bundle"
    export(str(folder), attention="softmax", output=bundle)
    assert max(differences(folder, tokenizer, bundle)) < 1e-5


def test_settings_that_tokenizer_json_does_not_carry(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"truncation_side": "left", "split_special_tokens": True}
    folder = save(Checkpoint(CHECKPOINTS["bert"].config), tmp_path / "checkpoint")
    fast_tokenizer(**settings).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    bundle = tmp_path / "bundle"
    export(str(folder), attention="softmax", output=bundle)
    manifest = read_manifest(bundle)
    assert {name: getattr(manifest, name) for name in settings} == settings
    assert max(differences(folder, tokenizer, bundle)) < 1e-5


def test_a_tokenizer_whose_class_adds_to_its_file(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "import transformers\n"
        "class Foxes(transformers.PreTrainedTokenizerFast):\n"
        "    def __call__(self, text, *args, **options):\n"
        "        return super().__call__(text.replace('film', 'fox'), *args, **options)\n"
        f"folder = {str(checkpoint('bert'))!r}\n"
        "def load():\n"
        "    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)\n"
        "    return model, Foxes.from_pretrained(folder), None\n"
    )
    with pytest.raises(ExportError, match="other ids than Foxes for the text 'A film so bad"):
        export(f"{source}:load", attention="softmax", output=tmp_path / "bundle")


def test_a_special_token_of_a_type_that_the_model_does_not_have(tmp_path: Path) -> None:
    folder = save(Checkpoint(CHECKPOINTS["bert"].config), tmp_path / "checkpoint")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:2 $A [SEP]", pair="[CLS]:2 $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(ExportError, match=r"gives the token '\[CLS\]' type id 2, must be below the model's type_vocab"):
        export(str(folder), attention="softmax", output=tmp_path / "bundle")
