"""The IMDb models: the same data, vocabulary and recipe with YOSO's attention or with softmax."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from attenuator.export.encoder import Encoder, EncoderConfig
from common.arguments import Arguments
from common.baseline import out_of_fold
from common.recipe import Recipe
from common.text import encode, imdb, target_matrix, train_tokenizer
from common.training import predict, train

DATA = "IMDb Large Movie Review Dataset v1.0 (Maas et al., ACL 2011), train split"
LICENCE = "weights: Apache-2.0; the data states no licence, its authors ask to cite the ACL 2011 paper"
MAX_TOKENS = 4096
# Weight of the baseline's out-of-fold probabilities in the targets.
TEACHER_WEIGHT = 0.5


def train_reviews(
    arguments: Arguments,
    attention: Literal["yoso", "softmax"],
    config: dict[str, float | int | str],
    hashed: Recipe | None = None,
) -> None:
    """Train on IMDb's train split, choose the epoch on a held-out tenth of it; the test split is not touched.

    Args:
        arguments: command line with the recipe.
        attention: the attention of the encoder.
        config: fields of `EncoderConfig` that differ from its defaults; `vocab_size` among them.
        hashed: a second phase that starts from the best epoch; the weights before and after it are averaged.
    """
    task, output = imdb(arguments.data), arguments.output
    tokenizer = train_tokenizer((document.text for document in task.train), int(config["vocab_size"]))
    output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(output / "tokenizer.json"))
    labels = np.array([document.labels[0] for document in task.train])
    teacher = out_of_fold([document.text for document in task.train], labels)
    print(f"teacher, out of fold: accuracy {((teacher > 0.5) == labels).mean():.4f}", flush=True)
    soft = np.stack([1 - teacher, teacher], axis=1)
    targets = ((1 - TEACHER_WEIGHT) * target_matrix(task.train, 2) + TEACHER_WEIGHT * soft).astype(np.float32)
    ids, held_out_ids = (encode(tokenizer, part, MAX_TOKENS) for part in (task.train, task.held_out))
    held_out_labels = np.array([document.labels[0] for document in task.held_out])

    def accuracy(candidate: Encoder) -> float:
        return float((predict(candidate, held_out_ids).argmax(1) == held_out_labels).mean())

    settings = {"attention": attention, "id2label": dict(enumerate(task.labels)), "max_tokens": MAX_TOKENS}
    model = Encoder(EncoderConfig(**settings | config))  # type: ignore[arg-type]
    train(model, ids, targets, arguments.recipe, accuracy, output)
    final = Encoder.from_pretrained(output)
    if hashed is not None:
        train(Encoder.from_pretrained(output), ids, targets, hashed, accuracy, output)
        after = Encoder.from_pretrained(output)
        with torch.no_grad():
            torch._foreach_lerp_(list(final.parameters()), list(after.parameters()), 0.5)
        final.save_pretrained(output)
    print(f"held-out accuracy at the exact value {accuracy(final):.4f}")
