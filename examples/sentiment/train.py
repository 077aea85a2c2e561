"""Train the `sentiment` model: SST-2 with softmax attention, exported with MCA's value projection.

It starts from the trained `reviews-mca` checkpoint: SST-2's sentences come from film reviews too, and are few.

`python examples/sentiment/train.py --data SST2_FOLDER --initial REVIEWS_MCA_CHECKPOINT --output CHECKPOINT_FOLDER
[--bundle BUNDLE]`
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.arguments import Arguments, parse, write_bundle
from common.recipe import Recipe
from common.text import encode, sst2, target_matrix
from common.training import predict, train
from tokenizers import Tokenizer

from attenuator.export.encoder import Encoder

DATA = (
    "SST-2 (Socher et al., EMNLP 2013; GLUE), train split; "
    "starts from reviews-mca, trained on IMDb (Maas et al., ACL 2011)"
)
LICENCE = "weights: Apache-2.0; neither data set states a licence, their authors ask to cite the papers"
MAX_TOKENS = 512
RECIPE = Recipe(epochs=2, tokens_per_batch=2048, learning_rate=5e-4, crop_lengths=(MAX_TOKENS,), word_dropout=0.15)


def main(arguments: Arguments) -> None:
    """Train, choose the epoch on held-out sentences, and report GLUE's dev split once."""
    assert arguments.initial is not None
    task = sst2(arguments.data)
    tokenizer = Tokenizer.from_file(str(arguments.initial / "tokenizer.json"))
    model = Encoder.from_pretrained(arguments.initial)
    model.config.max_tokens = MAX_TOKENS
    held_out, held_out_labels = encode(tokenizer, task.held_out, MAX_TOKENS), target_matrix(task.held_out, 2).argmax(1)

    def accuracy(candidate: Encoder) -> float:
        return float((predict(candidate, held_out).argmax(1) == held_out_labels).mean())

    print(f"held-out accuracy before training {accuracy(model):.4f}", flush=True)
    ids = encode(tokenizer, task.train, MAX_TOKENS)
    best = train(model, ids, target_matrix(task.train, 2), arguments.recipe, accuracy, arguments.output)
    shutil.copy(arguments.initial / "tokenizer.json", arguments.output)
    print(f"held-out accuracy {best:.4f}")
    logits = predict(Encoder.from_pretrained(arguments.output), encode(tokenizer, task.test, MAX_TOKENS))
    print(f"dev accuracy {(logits.argmax(1) == target_matrix(task.test, 2).argmax(1)).mean():.4f}")


if __name__ == "__main__":
    ARGUMENTS = parse(__doc__, RECIPE, initial=True)
    main(ARGUMENTS)
    HELD_OUT = [document.text for document in sst2(ARGUMENTS.data).held_out]
    write_bundle(ARGUMENTS, "mca", DATA, LICENCE, knob_default={"alpha": 0.2}, texts=HELD_OUT)
