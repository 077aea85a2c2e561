"""A finished comparison, and `comparison.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attenuator.calibration.records import Proportion
from attenuator.compare.candidates import Absent
from attenuator.compare.grid import shown
from attenuator.compare.judging import Candidate, Verdict
from attenuator.compare.report import sentence

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out.

    Attributes:
        about: what was compared on what: checkpoint, data, machine, versions.
        candidates: every method at every setting, the reference first.
        verdicts: one for each range of lengths.
        absent: what was not compared.
        min_agreement: what a recommended setting must keep.
    """

    about: dict[str, Any]
    candidates: Sequence[Candidate]
    verdicts: Sequence[Verdict]
    absent: Sequence[Absent]
    min_agreement: float

    @property
    def sentences(self) -> list[str]:
        """What to take, one sentence for each range of lengths."""
        return [sentence(verdict, self.candidates, self.min_agreement) for verdict in self.verdicts]

    @property
    def commands(self) -> list[str]:
        """What exports the recommended bundles, each once."""
        commands = []
        for verdict in self.verdicts:
            chosen = self.candidates[verdict.choice.candidate]
            knobs = ",".join(f"{name}={value:g}" for name, value in chosen.setting.items())
            commands.append(chosen.method.command(self.about["checkpoint"], knobs))
        return list(dict.fromkeys(commands))

    def as_json(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "format_version": FORMAT_VERSION,
            **self.about,
            "min_agreement": self.min_agreement,
            "ranges": [
                self._range(place, *each) for place, each in enumerate(zip(self.verdicts, self.sentences, strict=True))
            ],
            "not_compared": [{"name": row.name, "why": row.why, "command": row.command or None} for row in self.absent],
            "commands": self.commands,
        }

    def _range(self, place: int, verdict: Verdict, text: str) -> dict[str, Any]:
        choice = verdict.choice
        return {
            "low": verdict.range.low,
            "high": verdict.range.high,
            "texts": len(verdict.range.places),
            "timed_at_tokens": verdict.range.median,
            "attention_share": verdict.attention_share,
            "settings": [
                {
                    **self._named(point.candidate),
                    "ms": point.ms,
                    "times_as_fast": 1 / point.share,
                    "times_as_fast_low": 1 / point.slowest,
                    "credible": self.candidates[point.candidate].is_credible(place),
                    "agreement": _proportion(point.agreement),
                    "accuracy": point.accuracy and _proportion(point.accuracy),
                    "frontier": point.frontier,
                }
                for point in verdict.points
            ],
            "recommended": {
                **self._named(choice.candidate),
                "times_as_fast": 1 / verdict.points[choice.candidate].share,
                "agreement": choice.agreement and _proportion(choice.agreement),
            },
            "sentence": text,
        }

    def _named(self, place: int) -> dict[str, Any]:
        candidate = self.candidates[place]
        return {
            "method": candidate.method.name,
            "attention": candidate.method.attention,
            "precision": candidate.method.precision,
            "options": dict(candidate.method.options),
            "knobs": candidate.setting,
            "shown": shown(candidate.setting, candidate.exact),
        }


def _proportion(value: Proportion) -> dict[str, Any]:
    return {"value": value.value, **value.model_dump()}
