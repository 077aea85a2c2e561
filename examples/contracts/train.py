"""Train the `contracts` model: CUAD's 33 yes/no questions about a whole contract, YOSO-C, up to 32,768 tokens.

`python examples/contracts/train.py --data CUAD_FOLDER --output CHECKPOINT_FOLDER`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from common.arguments import Arguments, parse
from common.embeddings import latent_semantic_vectors
from common.text import cuad, encode, target_matrix, train_tokenizer
from common.training import Recipe, predict, train
from sklearn.metrics import average_precision_score

from attenuator.export.encoder import Encoder, EncoderConfig

MAX_TOKENS = 32_768
VOCAB_SIZE = 8_000
# Short crops first: cheap, and many documents a step. Then long ones, since attention sees whole contracts in use.
RECIPE = Recipe(
    epochs=14,
    tokens_per_batch=16_384,
    learning_rate=2e-3,
    crop_lengths=(256,),
    tokens_per_document=2048,
    word_dropout=0.1,
    average_decay=0.98,
)
LONG = replace(
    RECIPE,
    epochs=1,
    learning_rate=3e-4,
    crop_lengths=(1024, 2048, 4096),
    tokens_per_document=4096,
    sampled_from=0.0,
    average_decay=0.95,
    seed=1,
)
# Length of a token's vector at the start; layer norm follows, so only its ratio to the learning rate matters.
EMBEDDING_LENGTH = 0.16


def main(arguments: Arguments) -> None:
    """Train on 70 % of the contracts, choose epochs on 12 %; the test part is not touched."""
    task = cuad(arguments.data)
    kept, held_out, questions = task.train, task.held_out, task.labels
    print(f"{len(kept)} contracts to train, {len(held_out)} held out")
    tokenizer = train_tokenizer((document.text for document in kept), VOCAB_SIZE)
    arguments.output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(arguments.output / "tokenizer.json"))
    ids = encode(tokenizer, kept, MAX_TOKENS)
    model = Encoder(
        EncoderConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=64,
            intermediate_size=128,
            conv_size=5,
            num_labels=len(questions),
            problem_type="multi_label_classification",
            id2label=dict(enumerate(questions)),
            max_tokens=MAX_TOKENS,
            dropout=0.2,
        )
    )
    targets = target_matrix(kept, len(questions))
    prevalence = targets.mean(0).clip(0.01, 0.99)
    vectors = latent_semantic_vectors(ids, VOCAB_SIZE, model.config.hidden_size)
    with torch.no_grad():
        model.embeddings.weight.copy_(torch.from_numpy(EMBEDDING_LENGTH * vectors))
        model.classifier.bias.copy_(torch.from_numpy(np.log(prevalence / (1 - prevalence))))
    held_out_targets = target_matrix(held_out, len(questions))
    present = held_out_targets.any(0)

    def precision(length: int) -> Callable[[Encoder], float]:
        ids = encode(tokenizer, held_out, length)
        return lambda candidate: float(
            average_precision_score(held_out_targets[:, present], predict(candidate, ids)[:, present], average="macro")
        )

    train(model, ids, targets, arguments.recipe, precision(4096), arguments.output)
    best = train(Encoder.from_pretrained(arguments.output), ids, targets, LONG, precision(8192), arguments.output)
    print(f"held-out macro average precision at the exact value {best:.4f}")


if __name__ == "__main__":
    main(parse(__doc__, RECIPE))
