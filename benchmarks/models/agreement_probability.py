"""Are the probabilities of `explain` right on texts that the calibration has not seen? Half calibrates, half judges.

    python -m benchmarks.models.agreement_probability examples/bundles/reviews --data imdb-test.jsonl

Every text runs once at every setting of the grid. Then each half of the file, drawn by lot, calibrates once, and the
other half judges: so every text is judged once at every setting. Answers fall into ten parts of the predicted
probability; of each the predicted and the observed share of answers that agree are compared. The sampling error is that
of the observed share, the answers to one text counted as one observation (they change together).

A part passes where the two differ by at most 2 points plus 1.96 sampling errors; parts with fewer than 50 answers are
not judged. The same is counted for every setting alone.

`escalate` is followed on the same answers: which share agrees in the end, and what ran, as a share of the exact
setting's predicted time.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attenuator.calibration.frontier import Answers, PredictedTime, summarise
from attenuator.calibration.grid import grid
from attenuator.calibration.schema import FORMAT_VERSION, Calibration
from attenuator.commands.calibrate.partial import PartialResults
from attenuator.commands.calibrate.pipeline import answers_of, certainty_of, predicted_time, run_with_bar
from attenuator.commands.calibrate.runs import Logits, Run
from attenuator.commands.calibrate.texts import read_texts
from attenuator.json_lines import in_lines
from attenuator.runtime import Model, load
from attenuator.runtime.certainty import Judge

PARTS = 10
FEWEST = 50
POINTS, DEVIATIONS = 0.02, 1.96
GOALS = (0.9, 0.95, 0.99, 0.999)


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
        logits = run_with_bar([Run(model, each, texts.encoded, texts.seeds, predicted) for each in knobs], results)
    return model, answers_of(model, texts, knobs, logits, logits[0]), logits, predicted


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


def parts_of(probability: np.ndarray, agree: np.ndarray) -> Iterator[dict[str, Any]]:
    """Predicted and observed agreement by part of the predicted probability.

    Args:
        probability: `[settings, texts]`.
        agree: bool `[settings, texts]`.
    """
    places = np.minimum((probability * PARTS).astype(int), PARTS - 1)
    for part in range(PARTS):
        inside = places == part
        count = int(inside.sum())
        if count < FEWEST:
            continue
        by_text = ((agree - probability) * inside).sum(axis=0)  # texts are independent, answers to one are not
        error = float(np.sqrt((by_text**2).sum()) / count)
        predicted, observed = float(probability[inside].mean()), float(agree[inside].mean())
        yield {
            "part": [part / PARTS, (part + 1) / PARTS],
            "answers": count,
            "predicted": predicted,
            "observed": observed,
            "sampling_error": error,
            "passes": abs(observed - predicted) <= POINTS + DEVIATIONS * error,
        }


def escalated(
    judge: Judge, answers: Answers, logits: list[np.ndarray], texts: np.ndarray, goal: float, predicted: Any
) -> np.ndarray:
    """What becomes of each text: whether it agrees in the end, settings that ran, time over exact; `[texts, 3]`."""
    rows = []
    for text in texts:
        tokens = int(answers.tokens[text])
        knobs = judge.start(tokens, goal, lambda knobs: True)
        steps, time = 0, 0.0
        while True:
            place = list(answers.settings).index(knobs)
            steps, time = steps + 1, time + predicted(tokens, knobs)
            probability = judge.probability(logits[place][text], knobs, tokens)
            surer = judge.surer(logits[place][text], knobs, tokens, goal, lambda knobs: True)
            if not surer or (probability is not None and probability >= goal):
                break
            knobs = surer[0]
        rows.append([answers.agree[place, text], steps, time / predicted(tokens, answers.settings[0])])
    return np.array(rows, dtype=float)


def judged(model: Model, answers: Answers, logits: list[np.ndarray], about: dict[str, Any], predicted: Any) -> Any:
    """What each half says of the other: probabilities `[settings, texts]`, and rows `[texts, 3]` by goal."""
    probability = np.zeros(answers.agree.shape)
    ends = {goal: np.zeros((len(answers.tokens), 3)) for goal in GOALS}
    drawn = np.random.default_rng(0).permutation(len(answers.tokens))
    halves = [np.sort(drawn[: len(drawn) // 2]), np.sort(drawn[len(drawn) // 2 :])]
    for half, other in (halves, halves[::-1]):
        part = part_of(answers, half)
        calibration = calibration_of(model, part, predicted, **about)
        own = [each[half] for each in logits]
        certainty = certainty_of(model.manifest, part, own, own[0], calibration.buckets)
        calibration = calibration.model_copy(update={"certainty": certainty})
        judge = Judge(model.manifest, model.knobs, calibration)
        for place, knobs in enumerate(answers.settings):
            checked = judge.knobs.check(knobs)
            probability[place, other] = [
                judge.probability(logits[place][text], checked, int(answers.tokens[text])) for text in other
            ]
        for goal, rows in ends.items():
            rows[other] = escalated(judge, answers, logits, other, goal, predicted)
    return probability, ends


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the bundle, or reads what ran, and judges."""
    about = {"min_agreement": options.min_agreement, "confidence": 0.975}
    model, answers, logits, predicted = measured_on(options.bundle, options.data, options.partial, **about)
    probability, ends = judged(model, answers, logits, about, predicted)
    places = range(1, len(answers.settings))
    alone = [list(parts_of(probability[[place]], answers.agree[[place]])) for place in places]
    escalation = [
        dict(zip(("agreement", "steps", "time"), rows.mean(axis=0).tolist(), strict=True)) | {"goal": goal}
        for goal, rows in ends.items()
    ]
    return {
        "bundle": model.manifest.name,
        "texts": len(answers.tokens),
        "settings": len(places),
        "parts": list(parts_of(probability[1:], answers.agree[1:])),
        "alone": {"judged": sum(map(len, alone)), "pass": sum(row["passes"] for rows in alone for row in rows)},
        "escalation": escalation,
    }


def main() -> None:
    """Prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="JSON lines, as attenuator calibrate reads them")
    parser.add_argument("--min-agreement", type=float, default=0.99, help="as for attenuator calibrate (%(default)s)")
    parser.add_argument("--partial", type=Path, help="folder that keeps what ran, for another call")
    parser.add_argument("--output", type=Path, help="result file of JSON; none by default")
    options = parser.parse_args()
    result = run(options)
    if options.output:
        options.output.write_text(in_lines(result))
    print(f"{result['bundle']}, {result['texts']} texts, {result['settings']} settings\n")
    print("| predicted | answers | mean predicted | observed | sampling error | passes |\n|---|---|---|---|---|---|")
    for row in result["parts"]:
        cells = [f"{row['part'][0]:g} to {row['part'][1]:g}", str(row["answers"])]
        cells += [f"{row[name]:.3f}" for name in ("predicted", "observed", "sampling_error")]
        print(f"| {' | '.join(cells)} | {'yes' if row['passes'] else 'no'} |")
    print(f"\nsettings alone: {result['alone']['pass']} of {result['alone']['judged']} parts pass\n")
    print("| min_agreement | agreement after escalation | settings that ran | predicted time |\n|---|---|---|---|")
    for row in result["escalation"]:
        print(f"| {row['goal']:g} | {row['agreement']:.4f} | {row['steps']:.2f} | {row['time']:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
