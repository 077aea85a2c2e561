"""Train the `contracts` model: CUAD's 33 yes/no questions about a whole contract, YOSO-C, up to 32,768 tokens.

`python examples/contracts/train.py --data CUAD_FOLDER --output CHECKPOINT_FOLDER [--bundle BUNDLE]`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from common.arguments import Arguments, parse, write_bundle
from common.embeddings import latent_semantic_vectors
from common.recipe import Recipe
from common.text import cuad, encode, target_matrix, train_tokenizer
from common.training import predict, train
from sklearn.metrics import average_precision_score

from attenuator.export.encoder import Encoder, EncoderConfig

DATA = "CUAD v1 (The Atticus Project), 356 of its 510 contracts"
LICENCE = "weights: Apache-2.0; data: CC BY 4.0, The Atticus Project"
MAX_TOKENS = 32_768
VOCAB_SIZE = 8_000
RECIPE = Recipe(
    epochs=7,
    schedule_epochs=8,
    tokens_per_batch=16_384,
    learning_rate=1.5e-3,
    crop_lengths=(256,),
    tokens_per_document=2048,
    word_dropout=0.1,
    average_decay=0.98,
)
# Every second step hashes: the weights learn to stand the noise of few hashes.
HASHED = replace(RECIPE, epochs=3, schedule_epochs=0, learning_rate=7e-4, sampled_from=0.0, hashes=(8, 16), seed=1)
# Length of a token's vector; layer norm follows, so the scale itself is of no matter.
EMBEDDING_LENGTH = 0.16
# A clause is a hundredth of a contract, so the mean over tokens hardly moves; a large gain before pooling lets the
# classifier follow it at the learning rate of the rest.
POOLED_GAIN = 16.0


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
        # Not trained further: 356 contracts would be learned by heart through half a million weights.
        model.embeddings.weight.requires_grad_(False)
        model.embeddings.weight.copy_(torch.from_numpy(EMBEDDING_LENGTH * vectors))
        assert model.final_norm is not None
        model.final_norm.weight.fill_(POOLED_GAIN)
        model.classifier.bias.copy_(torch.from_numpy(np.log(prevalence / (1 - prevalence))))
    held_out_targets = target_matrix(held_out, len(questions))
    present = held_out_targets.any(0)

    def precision(length: int) -> Callable[[Encoder], float]:
        ids = encode(tokenizer, held_out, length)
        return lambda candidate: float(
            average_precision_score(held_out_targets[:, present], predict(candidate, ids)[:, present], average="macro")
        )

    train(model, ids, targets, arguments.recipe, precision(4096), arguments.output)
    best = train(Encoder.from_pretrained(arguments.output), ids, targets, HASHED, precision(4096), arguments.output)
    print(f"held-out macro average precision at the exact value {best:.4f}")


if __name__ == "__main__":
    ARGUMENTS = parse(__doc__, RECIPE)
    main(ARGUMENTS)
    write_bundle(ARGUMENTS, "yoso", DATA, LICENCE, knob_default=64)
