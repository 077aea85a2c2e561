"""Train the `pii` model: marks names, addresses, numbers and dates in texts; training texts are made by rule.

`python examples/pii/train.py --data DATA_FOLDER --output CHECKPOINT_FOLDER`

`DATA_FOLDER` holds `cuad/contracts.jsonl.gz` and `hyperpartisan/byarticle.jsonl.gz`, of which sentences without names
and numbers are taken as texts with nothing to mark.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from pii.texts import LABELS, LISTS, Maker, Text
from tokenizers import Encoding, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ModernBertConfig, ModernBertForTokenClassification, PreTrainedTokenizerFast

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
VOCABULARY, HIDDEN_SIZE, LAYERS, MAX_TOKENS, SEED = 3_000, 96, 3, 512, 0
TEXTS, TOKENIZER_TEXTS, TOKENS_A_BATCH = 40_000, 30_000, 2_000
LEARNING_RATE, WARMUP_STEPS = 3e-3, 100
PLAIN_SHARE, HIDDEN_SHARE = 0.3, 0.04
TERMS = set(LISTS["term"])  # words of contracts that are written with a capital and name nobody
BEGINNINGS = {"the", "a", "in", "it", "if", "we", "this", "each", "all", "any", "no", "but", "and", "they"}
Example = tuple[list[int], list[int]]  # token ids and labels


def plain_sentences(folder: Path) -> tuple[list[str], list[str]]:
    """Sentences without digits in which only the first word, "I" and terms of contracts have a capital.

    Args:
        folder: of the two data sets.

    Returns:
        Nine tenths to train on, and a tenth that is held out.
    """
    found = set[str]()
    for name in ("cuad/contracts.jsonl.gz", "hyperpartisan/byarticle.jsonl.gz"):
        with gzip.open(folder / name, "rt", encoding="utf-8") as rows:
            for row in rows:
                for sentence in re.split(r"(?<=[.?!])\s+", re.sub(r"\s+", " ", json.loads(row)["text"])):
                    first, *rest = re.findall(r"[^\W_]+", sentence) or [""]
                    is_plain = all(word.islower() or word in TERMS for word in rest)
                    if is_plain and (first in TERMS or first.lower() in BEGINNINGS) and 30 < len(sentence) < 300:
                        found.add(sentence)
    plain = sorted(found)
    random.Random(SEED).shuffle(plain)
    return plain[len(plain) // 10 :], plain[: len(plain) // 10]


def mixed(maker: Maker, plain: Sequence[str], count: int) -> list[Text]:
    """Texts by rule, a share of them with a plain sentence before or behind, some of plain sentences alone."""
    texts = list[Text]()
    for _ in range(count):
        text, draw = maker.text(), maker.draw.random()
        sentence = maker.draw.choice(plain)
        if draw < PLAIN_SHARE / 3:
            text = Text(sentence, ())
        elif draw < PLAIN_SHARE * 2 / 3:
            text = Text(f"{text.text} {sentence}", text.spans)
        elif draw < PLAIN_SHARE:
            moved = len(sentence) + 1
            spans = tuple((start + moved, end + moved, kind) for start, end, kind in text.spans)
            text = Text(f"{sentence} {text.text}", spans)
        texts.append(text)
    return texts


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """A WordPiece vocabulary with capitals and without accents, in which each digit is a token of its own."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), digits])
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL.values()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.WordPiece()
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer


def targets(encoding: Encoding, spans: Sequence[tuple[int, int, str]]) -> list[int]:
    """The label of each token, -100 for [CLS] and [SEP]: B- for the first token of a span, I- for the others."""
    labels = [-100 if special else 0 for special in encoding.special_tokens_mask]
    for start, end, kind in spans:
        prefix = "B"
        for place, (low, high) in enumerate(encoding.offsets):
            if low < high and low < end and high > start:
                labels[place] = LABELS.index(f"{prefix}-{kind}")
                prefix = "I"
    return labels


def batches(rows: list[Example], draw: random.Random) -> list[list[Example]]:
    """Rows of about one length each, in random order."""
    cut: list[list[Example]] = [[]]
    for row in sorted(rows, key=lambda row: len(row[0]) + draw.random() * 8):
        if cut[-1] and (len(cut[-1]) + 1) * len(row[0]) > TOKENS_A_BATCH:
            cut.append([])
        cut[-1].append(row)
    draw.shuffle(cut)
    return cut


def padded(rows: list[list[int]], filler: int) -> torch.Tensor:
    """`[rows, tokens]`."""
    width = max(map(len, rows))
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows])


def new_model() -> ModernBertForTokenClassification:
    """Random weights; positions are rotary, with which it learned from far fewer texts than with a table."""
    return ModernBertForTokenClassification(
        ModernBertConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN_SIZE,
            intermediate_size=2 * HIDDEN_SIZE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HIDDEN_SIZE // 32,
            max_position_embeddings=MAX_TOKENS,
            global_attn_every_n_layers=1,
            mlp_dropout=0.05,
            classifier_dropout=0.05,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
            cls_token_id=2,
            sep_token_id=3,
            id2label=dict(enumerate(LABELS)),
            label2id={label: place for place, label in enumerate(LABELS)},
        )
    )


def loss_of(model: ModernBertForTokenClassification, batch: list[Example]) -> torch.Tensor:
    """Cross-entropy of a batch in which some tokens are hidden."""
    ids, labels = padded([row[0] for row in batch], 0), padded([row[1] for row in batch], -100)
    hidden = (torch.rand(ids.shape) < HIDDEN_SHARE) & (labels >= 0)
    logits = model(input_ids=ids.masked_fill(hidden, 1), attention_mask=(ids != 0).long()).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def train(model: ModernBertForTokenClassification, rows: list[Example]) -> None:
    """One pass; the rate rises to its highest value and falls to 0."""
    plan = batches(rows, random.Random(SEED))
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(step / WARMUP_STEPS, (len(plan) - step) / len(plan))
    )
    model.train()
    began, losses = time.monotonic(), list[float]()
    for step, batch in enumerate(plan, 1):
        loss = loss_of(model, batch)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        if step % 100 == 0:
            print(f"step {step} of {len(plan)}, loss {np.mean(losses[-100:]):.4f}, {time.monotonic() - began:.0f} s")


def main() -> None:
    """Train and save; `evaluate.py` reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the two data sets")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument("--texts", type=int, default=TEXTS, help="texts to make (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    plain, _ = plain_sentences(options.data)
    texts = mixed(Maker(SEED), plain, options.texts)
    tokenizer = train_tokenizer([text.text for text in texts[:TOKENIZER_TEXTS]])
    rows = [
        (encoding.ids[:MAX_TOKENS], targets(encoding, text.spans)[:MAX_TOKENS])
        for encoding, text in zip(tokenizer.encode_batch([text.text for text in texts]), texts, strict=True)
    ]
    model = new_model()
    train(model, rows)
    model.save_pretrained(options.output)
    names = {f"{name}_token": token for name, token in SPECIAL.items()}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MAX_TOKENS, **names)
    fast.save_pretrained(options.output)


if __name__ == "__main__":
    main()
