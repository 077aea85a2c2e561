"""Is `min_agreement` kept on texts that the calibration has not seen? Half of a file calibrates, the other half judges.

    python -m benchmarks.calibration_splits examples/bundles/reviews --data imdb-test.jsonl

Every text runs once at every setting of the grid; then halves are drawn again and again, without running anything. For
each goal and split, each bucket of lengths chooses its cheapest setting. It is judged twice: by all texts of the
bucket, from which both halves were drawn, and by the other half alone, whose share has a sampling error of its own. The
goal is kept where that share is at least the goal, and by the exact setting always; how often that is chosen is told.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from attenuator.calibration import cheapest
from attenuator.calibration.frontier import Answers, PredictedTime, summarise
from attenuator.calibration.grid import grid
from attenuator.calibration.schema import FORMAT_VERSION, Calibration
from attenuator.commands.calibrate.partial import PartialResults
from attenuator.commands.calibrate.pipeline import answers_of, measured, predicted_time
from attenuator.commands.calibrate.runs import Logits
from attenuator.commands.calibrate.texts import read_texts
from attenuator.runtime import Model, load

GOALS = (0.8, 0.9, 0.95, 0.96, 0.97, 0.975, 0.98, 0.985, 0.99)


def measured_on(
    bundle: Path, data: Path, partial: Path | None, *, min_agreement: float, confidence: float
) -> tuple[Model, Answers, list[Logits], PredictedTime]:
    """Runs a bundle's texts at every setting of the grid.

    Args:
        bundle: its folder.
        data: file of JSON lines.
        partial: folder that keeps what ran, for another call; None keeps nothing.
        min_agreement: as for attenuator calibrate.
        confidence: likewise.

    Returns:
        The bundle, its answers, their logits `[texts, labels]` by setting, and predicted times.
    """
    model = load(bundle)
    predicted = predicted_time(bundle)
    texts = read_texts(data, model, min_agreement=min_agreement, confidence=confidence, truncate=True)
    knobs = [model.knobs.check(each) for each in grid(model.manifest.knobs)]
    what = {"revision": model.manifest.revision, "data_sha256": texts.sha256, "settings": knobs}
    labels = len(model.manifest.labels)
    with (
        tempfile.TemporaryDirectory() as folder,
        PartialResults(partial or Path(folder), what, labels, restart=False) as results,
    ):
        logits = measured(model, texts, knobs, results, predicted)
    return model, answers_of(model, texts, knobs, logits), logits, predicted


def calibration_of(
    model: Model, answers: Answers, predicted: PredictedTime, *, min_agreement: float, confidence: float, **fields: Any
) -> Calibration:
    """A calibration made of some texts.

    Args:
        model: the bundle.
        answers: to these texts.
        predicted: times.
        min_agreement: as for attenuator calibrate.
        confidence: likewise.
        fields: of the calibration, besides.
    """
    buckets, settings = summarise(
        answers,
        predicted,
        defaults=model.knobs.defaults(),
        max_tokens=model.manifest.max_tokens,
        min_agreement=min_agreement,
        confidence=confidence,
    )
    return Calibration(
        format_version=FORMAT_VERSION,
        revision=model.manifest.revision,
        confidence=confidence,
        data="half",
        data_sha256="0" * 64,
        texts=len(answers.tokens),
        buckets=buckets,
        settings=settings,
        **fields,
    )


def part_of(answers: Answers, texts: np.ndarray) -> Answers:
    """The answers of some texts."""
    return Answers(answers.settings, answers.tokens[texts], answers.agree[:, texts])


def judge(
    answers: Answers,
    calibration: Calibration,
    texts: np.ndarray,
    other: np.ndarray,
    goals: list[float],
    counts: Counter,
) -> None:
    """Counts, for each goal and bucket, whether the setting that is chosen keeps the goal.

    Args:
        answers: of all texts.
        calibration: made of `texts`.
        texts: places of the half that calibrated.
        other: places of the half that judges.
        goals: to ask for.
        counts: by goal and outcome.
    """
    for index, bucket in enumerate(calibration.buckets):
        inside = (answers.tokens >= bucket.low) & (answers.tokens <= bucket.high)
        unseen = other[inside[other]]
        for goal in goals:
            setting = cheapest(calibration, bucket.high, goal)
            if setting is calibration.settings[0]:
                counts[goal, "exact"] += 1
                continue
            agree = answers.agree[list(answers.settings).index(setting.knobs)]
            counts[goal, "cheaper"] += 1
            counts[goal, "kept by all"] += agree[inside].mean() >= goal
            counts[goal, "kept by the other half"] += agree[unseen].mean() >= goal
            counts[goal, "time"] += setting.time[index]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="JSON lines, as attenuator calibrate reads them")
    parser.add_argument("--splits", type=int, default=1000, help="how many halves to draw (%(default)s)")
    parser.add_argument("--min-agreement", type=float, default=0.99, help="as for attenuator calibrate (%(default)s)")
    parser.add_argument("--confidence", type=float, default=0.975, help="as for attenuator calibrate (%(default)s)")
    parser.add_argument("--partial", type=Path, help="folder that keeps what ran, for another call")
    parser.add_argument("--output", type=Path, help="result file of JSON; none by default")
    options = parser.parse_args()
    about = {"min_agreement": options.min_agreement, "confidence": options.confidence}
    model, answers, _, predicted = measured_on(options.bundle, options.data, options.partial, **about)
    generator = np.random.default_rng(0)
    counts: Counter[tuple[float, str]] = Counter()
    for _ in range(options.splits):
        drawn = generator.permutation(len(answers.tokens))
        half, other = np.sort(drawn[: len(drawn) // 2]), np.sort(drawn[len(drawn) // 2 :])
        calibration = calibration_of(model, part_of(answers, half), predicted, **about)
        judge(answers, calibration, half, other, list(GOALS), counts)
    rows = []
    for goal in GOALS:
        exact, cheaper = counts[goal, "exact"], counts[goal, "cheaper"]
        kept = {
            name: (exact + counts[goal, f"kept by {name}"]) / (exact + cheaper) for name in ("all", "the other half")
        }
        time = (exact + counts[goal, "time"]) / (exact + cheaper)
        rows.append({"goal": goal, "exact": exact / (exact + cheaper), "time": time, "kept": kept})
    if options.output:
        options.output.write_text(json.dumps({"bundle": model.manifest.name, "rows": rows}, indent=1) + "\n")
    what = f"{model.manifest.name}, {len(answers.tokens)} texts"
    print(f"{what}, {options.splits} splits, confidence {options.confidence:g}")
    print("| min_agreement | exact setting | predicted time | kept, by all texts | kept, by the other half |")
    print("|---|---|---|---|---|")
    for row in rows:
        kept = " | ".join(f"{share:.3f}" for share in row["kept"].values())
        print(f"| {row['goal']:g} | {row['exact']:.3f} | {row['time']:.2f} | {kept} |")


if __name__ == "__main__":
    sys.exit(main())
