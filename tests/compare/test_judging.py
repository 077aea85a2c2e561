"""Which setting `attenuator compare` recommends: one that is sure to keep the agreement, timed well."""

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from attenuator.compare.candidates import Method
from attenuator.compare.data import Range
from attenuator.compare.judging import Candidate, judge
from attenuator.compare.report import sentence, show


def candidates(share: Sequence[float], agreement: Sequence[float], texts: int) -> list[Candidate]:
    """The reference, then one candidate for each time and agreement."""
    rows = [(1.0, 1.0), *zip(share, agreement, strict=True)]
    draw = np.random.default_rng(2)
    built = []
    for index, (time, same) in enumerate(rows):
        agree = draw.permutation(np.arange(texts) < round(same * texts))
        method = Method("mca" if index else "softmax", "fp32")
        knobs = {"alpha": index / 10}
        built.append(Candidate(method, knobs, {"alpha": 0.0}, agree, None, [10 * time], [time]))
    return built


@pytest.mark.parametrize(
    ("share", "agreement", "texts", "chosen", "words"),
    [
        ([0.8, 0.5, 0.2], [1, 0.995, 0.6], 900, 2, "mca at alpha 0.2, 2.00 times as fast as exact (at least 2.00) at "),
        ([0.8, 0.5], [0.9, 0.7], 900, 0, "the first faster setting tried was not sure to keep an agreement of 0.95"),
        ([0.5], [0.965], 300, 0, "200 texts); more texts could show that it does."),
        ([0.97, 1.5], [1, 1], 900, 0, "is the better choice: nothing else was 1.05 times as fast."),
        ([0.5], [1], 60, 0, "mca at alpha 0.1 is 2.00 times as fast, at agreement 1.000 (lower bound 0.912, 40 texts)"),
        ([0.5], [1], 1, 0, "as far as so few texts can show"),
    ],
)
def test_a_choice_is_sure_to_keep_the_agreement(
    share: list[float], agreement: list[float], texts: int, chosen: int, words: str
) -> None:
    built = candidates(share, agreement, texts)
    one = Range(1, 64, np.arange(texts), 30)
    [verdict] = judge(built, [one], min_agreement=0.95, confidence=0.975)
    assert verdict.choice.candidate == chosen
    if chosen:
        assert verdict.choice.agreement is not None
        assert 0.95 <= verdict.choice.agreement.bound < verdict.choice.agreement.value
        assert verdict.choice.agreement.trials == 600, "a third of the texts chooses"
    assert words in sentence(verdict, built, 0.95)


def test_what_does_the_work_of_the_reference_is_not_recommended() -> None:
    """However fast the clock found it."""
    built = candidates([0.4, 0.7], [1, 1], 900)
    built[1] = replace(built[1], same_work=[True])
    one = Range(1, 64, np.arange(900), 30)
    [verdict] = judge(built, [one], min_agreement=0.95, confidence=0.975)
    assert verdict.choice.candidate == 2
    assert [point.frontier for point in verdict.points] == [True, False, True]
    console = Console(file=io.StringIO(), width=120)
    show(console, [verdict], built, [], [])
    assert console.file.getvalue().count("alpha 0.1 (exact here)") == 1  # type: ignore[attr-defined]


def test_what_the_clock_cannot_be_trusted_with_is_not_recommended() -> None:
    """Neither a time that other work disturbed, nor one that is faster in some turns and slower in others."""
    built = candidates([0.2, 0.7, 0.8], [1, 1, 1], 900)
    built[1] = replace(built[1], credible=[False])
    built[2] = replace(built[2], slowest=[1.1])
    one = Range(1, 64, np.arange(900), 30)
    [verdict] = judge(built, [one], min_agreement=0.95, confidence=0.975)
    assert verdict.choice.candidate == 3
    console = Console(file=io.StringIO(), width=120)
    show(console, [verdict], built, [], [])
    assert "2.00?" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "the machine was busy" in console.file.getvalue()  # type: ignore[attr-defined]
