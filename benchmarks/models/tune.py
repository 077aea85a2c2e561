"""What `attenuator tune` reaches on texts that it has not seen, and how often its promise holds there.

    python -m benchmarks.models.tune CHECKPOINT --texts FILE.jsonl
    python -m benchmarks.models.tune CHECKPOINT --texts FILE.jsonl --splits 100

FILE has JSON lines as `attenuator tune` takes them, none of which the checkpoint was trained on. `--tuning` of them,
drawn by lot, go to the command; the others judge. The first form runs the command, with `--precision fp32` and with its
own choice, and compares the bundle's answers to the unseen texts, at its default, with the exact ones in fp32. The
second form follows the same choice on many such draws: every text runs once at every setting that any draw asks for, so
that a draw costs nothing; it says in how many of them the unseen texts agree at least as often as was promised.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from attenuator.bundle import Manifest
from attenuator.calibration import read_calibration
from attenuator.calibration.frontier import Answers, summarise
from attenuator.calibration.goals import default_setting
from attenuator.calibration.grid import values
from attenuator.calibration.proportions import proportion
from attenuator.calibration.schema import FORMAT_VERSION, Calibration
from attenuator.export.choose import SelectionOptions, agreeing, merges_to_try
from attenuator.export.knobs import bundle_knobs
from attenuator.export.pipeline import describe
from attenuator.export.source import load
from attenuator.export.steps import Steps
from attenuator.export.trace import PackedClassifier
from attenuator.export.trial import KNOB, Trial
from attenuator.runtime import Row
from attenuator.runtime import load as load_bundle
from attenuator.runtime.scores import agrees
from attenuator.tune.pipeline import Run
from attenuator.tune.result import CHOOSING_SHARE, CONFIDENCE, Candidate, Point, sentences
from attenuator.tune.settings import TuneSettings
from attenuator.tune.texts import read
from benchmarks.measure.intervals import share

BATCH = 64

Logits = npt.NDArray[np.float32]


def quiet(_: str) -> None:
    """Says nothing."""


class Recorded:
    """A trial of which any part of the texts may be asked, as often as one likes: what ran is kept."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.kept: dict[tuple[str, float], tuple[float, npt.NDArray[np.bool_]]] = {}
        self.schedule = ""

    def agree(self, schedule: str, keep: float) -> tuple[float, npt.NDArray[np.bool_]]:
        """Work as a share of the exact model's, and bool `[texts]`, which answers are the exact ones."""
        key = schedule, keep
        if key not in self.kept:
            if self.schedule != schedule or self.trial.session is None:
                self.trial.open(schedule)
                self.schedule = schedule
            logits = np.concatenate(list(self.trial.logits(self.trial.knobs_at(keep))))
            manifest = self.trial.manifest
            same = agrees(logits, self.trial.exact, task=manifest.task, thresholds=manifest.thresholds)
            self.kept[key] = self.trial.cost_at(keep), same
        return self.kept[key]


class Part:
    """Some texts of a recorded trial, as the choice takes a trial."""

    def __init__(self, recorded: Recorded, places: npt.NDArray[np.int64]) -> None:
        self.recorded, self.places = recorded, places
        trial = recorded.trial
        self.merge, self.layers, self.pooling = trial.merge, trial.layers, trial.pooling
        self.texts = [trial.texts[place] for place in places]
        self.schedule = ""

    def open(self, schedule: str) -> None:
        """Goes on with another schedule."""
        self.schedule = schedule

    def close(self) -> None:
        """Does nothing: the recorded trial stays."""

    def cost_at(self, keep: float) -> float:
        """Work of all texts as a share of the exact model's."""
        return self.recorded.agree(self.schedule, keep)[0]

    def agreement(self, keep: float, _: float) -> float:
        """Share of the texts whose answers are the exact ones."""
        return float(self.recorded.agree(self.schedule, keep)[1][self.places].mean())


def trials(checkpoint: str, texts: Path, folder: Path) -> list[Recorded]:
    """The checkpoint on all texts, with every way to merge that it can have."""
    source = load(checkpoint)
    encoded, _ = read(texts, TuneSettings(texts=texts), source, print)
    own = PackedClassifier(source.architecture, source.model, "softmax", {}, source.has_token_types)
    fields: dict[str, Any] = describe(source, "tuned", None) | {
        "thresholds": [0.5] * len(source.labels) if source.task == "multi_label" else None,
        "knobs": bundle_knobs(own.operators, {}, {}, own.attributes),
        "precision": "fp32",
        "pooling": own.pooling,
        "inputs": own.inputs,
        "outputs": own.outputs,
    }
    manifest = Manifest.model_construct(**fields)
    recorded: list[Recorded] = []
    for merge in merges_to_try(own, None):
        own.merge = merge
        place = folder / merge
        place.mkdir()
        exact = recorded[0].trial.exact if recorded else None
        recorded.append(Recorded(Trial(own, manifest, encoded.encoded, place, exact)))
    return recorded


def one_draw(recorded: Sequence[Recorded], options: argparse.Namespace, draw: np.random.Generator) -> dict[str, Any]:
    """Chooses, calibrates and judges on texts drawn by lot."""
    tokens = np.array([len(text.token_ids) for text in recorded[0].trial.texts])
    order = draw.permutation(len(tokens))
    choosing, judging = np.split(order[: options.tuning], [round(CHOOSING_SHARE * options.tuning)])
    unseen = order[options.tuning :]
    asked = SelectionOptions(None, None, None, None, options.min_agreement)
    parts: Any = [Part(each, choosing) for each in recorded]
    best = agreeing(parts, asked, quiet, {})
    if best is None:
        return {"gain": 1.0, "measured": 1.0, "promised": 1.0, "unseen": 1.0, "setting": "exact"}
    of = next(each for each in recorded if each.trial.merge == best.merge)
    [row] = of.trial.manifest.knobs
    shares = values(row.model_copy(update={"default": best.share}), 8)
    grid = {share: of.agree(best.schedule, share) for share in shares}
    same = np.stack([grid[share][1] for share in shares])
    costs = {share: grid[share][0] for share in shares}
    buckets, settings = summarise(
        Answers([{KNOB.name: share} for share in shares], tokens[judging], same[:, judging]),
        lambda _, knobs: costs[knobs[KNOB.name]],
        defaults={KNOB.name: best.share},
        min_agreement=options.min_agreement,
        confidence=CONFIDENCE,
        max_tokens=of.trial.manifest.max_tokens,
    )
    head: dict[str, Any] = {"format_version": FORMAT_VERSION, "revision": "0" * 64, "data_sha256": "0" * 64}
    calibration = Calibration(
        **head,
        confidence=CONFIDENCE,
        data="texts",
        texts=len(judging),
        buckets=buckets,
        settings=settings,
        default_agreement=options.min_agreement,
    )
    chosen = np.array([shares.index(default_setting(calibration, int(count)).knobs[KNOB.name]) for count in tokens])
    agree = same[chosen, np.arange(len(tokens))]
    measured = proportion(int(agree[judging].sum()), len(judging), CONFIDENCE)
    point = Point({}, measured, None, 1.0, 1.0, 1.0)
    work = np.array([costs[share] for share in shares])[chosen]
    return {
        "gain": float(tokens[unseen].sum() / (tokens[unseen] * work[unseen]).sum()),
        "measured": measured.value,
        "promised": Candidate("fp32", calibration, [], point).promised,
        "unseen": float(agree[unseen].mean()),
        "setting": f"{best.schedule}, merge {best.merge}",
    }


def splits(checkpoint: str, options: argparse.Namespace) -> dict[str, Any]:
    """Many draws of one checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = trials(checkpoint, options.texts, Path(folder))
        draw = np.random.default_rng(options.seed)
        rows = [one_draw(recorded, options, draw) for _ in range(options.splits)]
    unseen = np.array([row["unseen"] for row in rows])
    return {
        "draws": len(rows),
        "promise_holds": sum(row["unseen"] >= row["promised"] for row in rows),
        "unseen_agreement": {"mean": unseen.mean(), "least": unseen.min(), "sd": unseen.std()},
        "less_work_times": float(np.mean([row["gain"] for row in rows])),
        "promised_mean": float(np.mean([row["promised"] for row in rows])),
        "settings": dict(Counter(row["setting"] for row in rows).most_common(4)),
    }


def command(checkpoint: str, precision: Any, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The command itself, and its bundle on the texts that it has not seen."""
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    order = np.random.default_rng(options.seed).permutation(len(lines))
    mine, rest = folder / "tuning.jsonl", folder / "unseen.jsonl"
    mine.write_text("\n".join(lines[place] for place in order[: options.tuning]) + "\n", encoding="utf-8")
    unseen = order[options.tuning : options.tuning + options.unseen]
    rest.write_text("\n".join(lines[place] for place in unseen) + "\n", encoding="utf-8")
    settings = TuneSettings(
        texts=mine,
        output=folder / f"bundle-{precision}",
        precision=precision,
        min_agreement=options.min_agreement,
        minutes=options.minutes,
        threads=options.threads,
    )
    begun = time.perf_counter()
    steps = Steps(Console(stderr=True))
    run = Run(checkpoint, settings, print, steps)
    tuned = run.tune()
    took_s = time.perf_counter() - begun
    assert tuned is not None
    assert settings.output is not None
    bundle = load_bundle(settings.output, threads=options.threads)
    calibration = read_calibration(settings.output, bundle.manifest)
    assert calibration is not None
    exact_folder = folder / "exact"
    if not exact_folder.exists():
        Run(checkpoint, settings.model_copy(update={"texts": None, "output": exact_folder}), print, steps).tune()
    exact = load_bundle(exact_folder, threads=options.threads)
    texts, _ = read(rest, TuneSettings(texts=rest), run.source, print)
    answers: list[Logits] = []
    for model, default in ((exact, False), (bundle, True)):
        rows = [
            Row(
                text.token_ids,
                text.type_ids,
                model.knobs.check(default_setting(calibration, len(text.token_ids)).knobs)
                if default
                else model.knobs.exact(),
            )
            for text in texts.encoded
        ]
        batches = [model.run(rows[start : start + BATCH]) for start in range(0, len(rows), BATCH)]
        answers.append(np.stack([result.logits for batch in batches for result in batch]))
    manifest = bundle.manifest
    same = agrees(answers[1], answers[0], task=manifest.task, thresholds=manifest.thresholds)
    row = {"checkpoint": Path(checkpoint).name, "asked": precision, "took_s": round(took_s, 1)}
    row |= {"texts": options.tuning, "unseen_agreement": share(same), "promised": tuned.choice.promised}
    if texts.truth is not None and manifest.task == "single_label":
        right = [texts.truth[np.arange(len(same)), each.argmax(axis=1)] for each in answers]
        row["accuracy"] = {"exact": float(right[0].mean()), "tuned": float(right[1].mean())}
    return row | {"said": sentences(tuned, "BUNDLE")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--tuning", type=int, default=1000, help="texts that tune gets")
    parser.add_argument("--unseen", type=int, default=4000, help="texts that judge, at most, where the command runs")
    parser.add_argument("--min-agreement", type=float, default=0.99)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--splits", type=int, default=0, help="draws to follow, in place of running the command")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if options.splits:
        print(json.dumps(splits(options.checkpoint, options), indent=1))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("fp32", "best"):
            print(json.dumps(command(options.checkpoint, precision, options, Path(folder)), indent=1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
