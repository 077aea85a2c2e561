"""Half of some texts calibrates, the other half judges: on bundled models, over many halves.

`benchmarks/models/agreement_probability.py` does the like on real texts, which are not part of this repository.
"""

import random
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from attenuator.bundle import MODEL
from attenuator.calibration import Calibration, cheapest
from attenuator.calibration.frontier import Answers, summarise
from attenuator.calibration.grid import grid
from attenuator.commands.cost import Setting, TimeModel
from attenuator.runtime import Row, load
from attenuator.runtime.graph import read_graph
from attenuator.runtime.scores import agrees
from attenuator.runtime.work import count_work

BUNDLES = Path(__file__).resolve().parents[2] / "examples" / "bundles"
TEXT = "the film was a quiet and moving one but not very good or bad, dull: a clever waste of fine actors ."
WORDS = TEXT.split()
TEXTS, SPLITS, CONFIDENCE = 400, 200, 0.975
GOALS = (0.8, 0.9, 0.95, 0.97)


@pytest.mark.parametrize("name", ["reviews", "reviews-mca"])
def test_goals_are_kept_by_texts_that_the_calibration_has_not_seen(name: str) -> None:
    model = load(BUNDLES / name, check=False)
    draw = random.Random(1)
    encoded = [model.encode(" ".join(draw.choices(WORDS, k=draw.randint(20, 60)))) for _ in range(TEXTS)]
    settings = [model.knobs.check(each) for each in grid(model.manifest.knobs)][::2]
    logits = []
    for knobs in settings:
        rows = [Row(one.token_ids, one.type_ids, knobs, seed=place) for place, one in enumerate(encoded)]
        logits.append(np.stack([result.logits for result in model.run(rows)]))
    agree = np.stack([agrees(each, logits[0], task="single_label", thresholds=[]) for each in logits])
    tokens = np.array([len(one.token_ids) for one in encoded])
    time = TimeModel(count_work(read_graph(BUNDLES / name / MODEL)))
    generator = np.random.default_rng(2)
    missed = dict.fromkeys(GOALS, 0)
    chosen = set()
    for _ in range(SPLITS):
        half, other = np.split(generator.permutation(TEXTS), 2)
        buckets, rows = summarise(
            Answers(settings, tokens[half], agree[:, half]),
            lambda length, knobs: time.ns(length, Setting(knobs)),
            defaults=settings[1],
            min_agreement=0.9,
            confidence=CONFIDENCE,
            max_tokens=model.manifest.max_tokens,
        )
        head = {
            "format_version": 1,
            "revision": "0" * 64,
            "confidence": CONFIDENCE,
            "data": "",
            "data_sha256": "0" * 64,
        }
        calibration = Calibration(**head, texts=len(half), buckets=buckets, settings=rows)
        for goal in GOALS:
            places = [settings.index(cheapest(calibration, int(tokens[text]), goal).knobs) for text in other]
            missed[goal] += agree[places, other].mean() < goal
            chosen |= set(places)
    # The share of the other half has a sampling error of its own, hence the confidence above 0.95.
    assert max(missed.values()) <= binom.ppf(0.999, SPLITS, 0.05)
    assert len(chosen) > 1
