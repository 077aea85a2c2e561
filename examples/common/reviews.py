"""The two IMDb models: the same data, vocabulary and recipe with YOSO's attention or with softmax."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attenuator.export.encoder import Encoder, EncoderConfig
from common.arguments import Arguments
from common.baseline import out_of_fold
from common.text import encode, imdb, target_matrix, train_tokenizer
from common.training import predict, train

MAX_TOKENS = 4096
# Weight of the baseline's out-of-fold probabilities in the targets.
TEACHER_WEIGHT = 0.8


def train_reviews(
    arguments: Arguments, attention: Literal["yoso", "softmax"], config: dict[str, float | int | str]
) -> None:
    """Train on IMDb's train split, choose the epoch on a held-out tenth of it; the test split is not touched.

    Args:
        arguments: command line with the recipe.
        attention: the attention of the encoder.
        config: fields of `EncoderConfig` that differ from its defaults; `vocab_size` among them.
    """
    task, output = imdb(arguments.data), arguments.output
    kept, held_out = task.train, task.held_out
    tokenizer = train_tokenizer((document.text for document in kept), int(config["vocab_size"]))
    output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(output / "tokenizer.json"))
    labels = np.array([document.labels[0] for document in kept])
    teacher = out_of_fold([document.text for document in kept], labels)
    print(f"teacher, out of fold: accuracy {((teacher > 0.5) == labels).mean():.4f}", flush=True)
    soft = np.stack([1 - teacher, teacher], axis=1)
    targets = ((1 - TEACHER_WEIGHT) * target_matrix(kept, 2) + TEACHER_WEIGHT * soft).astype(np.float32)
    held_out_ids = encode(tokenizer, held_out, MAX_TOKENS)
    held_out_labels = np.array([document.labels[0] for document in held_out])

    def accuracy(candidate: Encoder) -> float:
        return float((predict(candidate, held_out_ids).argmax(1) == held_out_labels).mean())

    settings = {"attention": attention, "id2label": dict(enumerate(task.labels)), "max_tokens": MAX_TOKENS}
    model = Encoder(EncoderConfig(**settings, **config))  # type: ignore[arg-type]
    best = train(model, encode(tokenizer, kept, MAX_TOKENS), targets, arguments.recipe, accuracy, output)
    print(f"held-out accuracy at the exact value {best:.4f}")
