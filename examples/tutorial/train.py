"""Trains a small BERT from scratch on labelled texts, and saves it as transformers saves every classifier.

    python examples/tutorial/train.py tutorial/train.jsonl --output tutorial/checkpoint

Nothing here is particular to Attenuator: a checkpoint that you fine-tuned elsewhere takes this one's place.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from tqdm import tqdm
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

VOCABULARY, LONGEST = 4096, 96
SHAPE = {"num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # few steps: there is nothing to forget
BATCH, LEARNING_RATE, WARM_UP, SEED = 16, 1e-3, 0.1, 0


def tokenizer_of(texts: list[str]) -> BertTokenizerFast:
    """A WordPiece tokenizer whose vocabulary is made from the texts."""
    trainer = BertWordPieceTokenizer()
    trainer.train_from_iterator(texts, vocab_size=VOCABULARY, show_progress=False)
    return BertTokenizerFast(tokenizer_object=trainer._tokenizer, model_max_length=LONGEST)


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="JSON lines with text and label")
    parser.add_argument("--output", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--steps", type=int, default=800, help="batches to train on")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
    labels = sorted({row["label"] for row in rows})
    torch.manual_seed(SEED)
    draw = random.Random(SEED)

    tokenizer = tokenizer_of([row["text"] for row in rows])
    encoded = tokenizer([row["text"] for row in rows], truncation=True)["input_ids"]
    examples = [(ids, labels.index(row["label"])) for ids, row in zip(encoded, rows, strict=True)]
    names = {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=len(tokenizer), max_position_embeddings=LONGEST, **SHAPE, **DROPOUT, **names)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    average = 0.0
    for step in tqdm(range(options.steps), "training"):
        # Texts of similar lengths, so that little is padded; the learning rate rises and falls to zero.
        chosen = sorted(draw.sample(examples, min(len(examples), 8 * BATCH)), key=lambda each: len(each[0]))
        begin = draw.randrange(0, max(1, len(chosen) - BATCH))
        ids, targets = zip(*chosen[begin : begin + BATCH], strict=True)
        batch = tokenizer.pad({"input_ids": list(ids)}, return_tensors="pt")
        loss = model(**batch, labels=torch.tensor(targets)).loss
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((step + 1) / (WARM_UP * options.steps), 1 - step / options.steps)
        optimizer.step()
        average = loss.item() if step == 0 else 0.95 * average + 0.05 * loss.item()
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    print(f"{options.output}: {len(labels)} labels, {options.steps} steps, loss {average:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
