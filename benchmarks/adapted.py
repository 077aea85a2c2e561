"""A bundle that `attenuator adapt` made, beside the exact softmax model that it was made of.

    python -m benchmarks.adapted ADAPTED_BUNDLE SOFTMAX_BUNDLE --texts FILE.jsonl [--limit 500] [--num-hashes 0,8,32]

For each value of the knob: on how many texts the answers agree, with a 95 % interval, the accuracy of both where the
texts have labels, and how long a text takes, alone. Every text has a seed of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attenuator.calibration.proportions import wilson
from attenuator.runtime import Encoded, Model, Row, load
from attenuator.runtime.scores import agrees

CONFIDENCE = 0.95


class Answers(NamedTuple):
    """Logits `[texts, labels]`, and seconds `[texts]`."""

    logits: npt.NDArray[np.float32]
    seconds: npt.NDArray[np.float64]


def answer(model: Model, texts: list[Encoded], knobs: dict[str, float | int], rounds: int) -> Answers:
    """Runs each text alone; of several rounds the least time counts."""
    checked = model.knobs.check(knobs)
    logits, seconds = [], []
    for seed, text in enumerate(texts):
        row = Row(text.token_ids, text.type_ids, checked, seed)
        times = []
        for _ in range(rounds):
            begun = time.perf_counter()
            [result] = model.run([row])
            times.append(time.perf_counter() - begun)
        logits.append(result.logits)
        seconds.append(min(times))
    return Answers(np.stack(logits), np.array(seconds))


def accuracy(logits: npt.NDArray[np.float32], labels: list[int] | None) -> str:
    """Share of right answers; empty without labels."""
    return "" if labels is None else f"{(logits.argmax(axis=1) == np.array(labels)).mean():.4f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapted", type=Path, help="bundle that adapt and export made")
    parser.add_argument("softmax", type=Path, help="bundle of the checkpoint that was adapted")
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines with `text`, and `label`")
    parser.add_argument("--skip", type=int, default=0, help="texts at the beginning of the file that are left out")
    parser.add_argument("--limit", type=int, help="how many texts to run")
    parser.add_argument("--num-hashes", default="0,8,16,32,64", help="values of the knob (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each text, of which the fastest counts")
    options = parser.parse_args()
    student, teacher = (load(folder, check=False) for folder in (options.adapted, options.softmax))
    rows = [json.loads(line) for line in options.texts.read_text(encoding="utf-8").splitlines()][options.skip :]
    rows = rows[: options.limit]
    names = teacher.manifest.labels
    labels = [names.index(row["label"]) for row in rows] if all("label" in row for row in rows) else None
    texts = [teacher.encode(row["text"], truncate=True) for row in rows]
    exact = answer(teacher, texts, {}, options.rounds)
    lengths = [len(text.token_ids) for text in texts]
    print(f"{len(texts)} texts, {np.mean(lengths):,.0f} tokens in the mean, {max(lengths):,} at most")
    print(f"softmax: accuracy {accuracy(exact.logits, labels)}, {1000 * exact.seconds.mean():.1f} ms a text\n")
    print("| `num_hashes` | agreement with softmax | accuracy | ms a text | times as fast |\n|---|---|---|---|---|")
    for value in map(int, options.num_hashes.split(",")):
        ours = answer(student, texts, {"num_hashes": value}, options.rounds)
        same = int(agrees(ours.logits, exact.logits, task="single_label", thresholds=[]).sum())
        low, high = wilson(same, len(texts), CONFIDENCE)
        faster = exact.seconds.sum() / ours.seconds.sum()
        print(
            f"| {value} | {same / len(texts):.4f} ({low:.3f} to {high:.3f}) | {accuracy(ours.logits, labels)} | "
            f"{1000 * ours.seconds.mean():.1f} | {faster:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
