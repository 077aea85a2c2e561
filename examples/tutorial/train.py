"""Trains a small BERT from scratch on labelled texts, and saves it as transformers saves every classifier.

    python examples/tutorial/train.py tutorial/train.jsonl --output tutorial/checkpoint

It draws up the model and its vocabulary; `attenuator train` does the rest. A checkpoint that you fine-tuned elsewhere
takes this one's place.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertTokenizerFast

VOCABULARY, LONGEST = 4096, 96
SHAPE = {"num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 512}
DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # few steps: there is nothing to forget
LEARNING_RATE, BATCH_TOKENS = 1e-3, 1024


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
    parser.add_argument("--epochs", default="4", help="passes over the texts")
    options = parser.parse_args()
    texts = [json.loads(line)["text"] for line in options.data.read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as start:
        tokenizer = tokenizer_of(texts)
        tokenizer.save_pretrained(start)
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=LONGEST, **SHAPE, **DROPOUT)
        config.save_pretrained(start)
        files = [f"{start}/config.json", "--data", str(options.data), "--output", str(options.output), "--truncate"]
        rates = ["--epochs", options.epochs, "--learning-rate", str(LEARNING_RATE), "--batch-tokens", str(BATCH_TOKENS)]
        training = subprocess.Popen([sys.executable, "-m", "attenuator", "train", *files, *rates])
        while True:
            try:
                return training.wait()
            except KeyboardInterrupt:  # it comes to both; training saves its state, then ends
                continue


if __name__ == "__main__":
    sys.exit(main())
