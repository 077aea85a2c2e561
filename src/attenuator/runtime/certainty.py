"""Certainty of an answer, and which setting would raise it: by a bundle's calibration, without another run."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Manifest
from attenuator.calibration import Calibration, out_of_reach
from attenuator.calibration.certainty import expected_share, most_shown, probability
from attenuator.calibration.schema import Certainty, SettingCertainty
from attenuator.errors import GoalOutOfReach
from attenuator.ops.knobs import Knobs, KnobValue, accuracy_rank
from attenuator.runtime.request import KnobTable
from attenuator.runtime.scores import Logits, margins


@dataclass(frozen=True, slots=True)
class Judge:
    """Says how sure the answers of one bundle are.

    Attributes:
        manifest: of the bundle.
        knobs: of the bundle.
        calibration: what its settings are worth; None where it was not calibrated.
    """

    manifest: Manifest
    knobs: KnobTable
    calibration: Calibration | None

    @property
    def certainty(self) -> Certainty | None:
        """What was measured of single answers, None where nothing was."""
        return None if self.calibration is None else self.calibration.certainty

    def probability(self, logits: Logits, knobs: Knobs, tokens: int) -> float | None:
        """The probability that an answer agrees with the checkpoint's exact one in fp32.

        Args:
            logits: float32 `[num_labels]`, of the answer.
            knobs: at which it was given, a value for every knob.
            tokens: length of its text.

        Returns:
            1 for an exact answer in fp32. At a setting that was not measured, what the surest one says that is in no
            knob more accurate; None where none was measured, or the bundle has no such calibration.
        """
        if knobs == self.knobs.exact() and not self.manifest.rounded:
            return 1.0
        calibration, certainty = self.calibration, self.certainty
        if calibration is None or certainty is None:
            return None
        bucket = calibration.bucket(tokens)
        setting = self._measured(certainty, knobs, bucket)
        return None if setting is None else probability(certainty, setting, bucket, self._margins(logits))

    def start(self, tokens: int, goal: float, permits: Callable[[Knobs], bool]) -> dict[str, KnobValue] | None:
        """The setting to begin with: the one of the lowest expected time, counting another run where it is not enough.

        Args:
            tokens: length of the text.
            goal: the probability to reach.
            permits: whether a setting may be used.

        Returns:
            A value for every knob; None where no setting of the frontier is permitted, or nothing was measured.

        Raises:
            GoalOutOfReach: the goal is above what the bundle's rounding keeps, or takes the exact setting, which is not
                permitted.
        """
        calibration, certainty = self.calibration, self.certainty
        if calibration is None or certainty is None:
            return None
        bucket = calibration.bucket(tokens)
        if calibration.bounds(bucket)[0] < goal:
            raise out_of_reach(calibration, bucket, goal)
        if goal > most_shown(certainty.texts) and not permits(self.knobs.exact()):
            most = math.floor(most_shown(certainty.texts) * 1e4) / 1e4
            raise GoalOutOfReach(
                f"min_agreement {goal:g} takes the exact knobs here, which the ceilings of the API key or the "
                f"service's limit on cost do not permit: other knobs are shown to reach at most {most:g}",
                param="min_agreement",
                allowed=f"at most {most:g}",
            )
        permitted = []
        for setting in calibration.frontier(bucket):
            checked = self.knobs.check(setting.knobs)
            if permits(checked):
                permitted.append((checked, setting.time[bucket] if setting.time else 0.0))
        again = max((time for _, time in permitted), default=0.0)

        def expected_time(place: int) -> float:
            knobs, time = permitted[place]
            row = self._measured(certainty, knobs, bucket)
            share = expected_share(certainty, row, bucket, goal) if row else 0.0
            return time if place == 0 else time + (1 - share) * again

        return permitted[min(range(len(permitted)), key=expected_time)][0] if permitted else None

    def surer(
        self, logits: Logits, knobs: Knobs, tokens: int, goal: float, permits: Callable[[Knobs], bool]
    ) -> list[dict[str, KnobValue]]:
        """Settings that would make an answer surer, from the frontier of its length.

        Args:
            logits: float32 `[num_labels]`, of the answer.
            knobs: at which it was given.
            tokens: length of its text.
            goal: the probability to reach.
            permits: whether a setting may be used.

        Returns:
            First the cheapest one that reaches the goal if the answer's margins stay as they are, or the most accurate
            one where none does; after it the cheaper ones, from the most accurate down. Empty where none is surer.
        """
        calibration, certainty = self.calibration, self.certainty
        if calibration is None or certainty is None or knobs == self.knobs.exact():
            return []
        bucket = calibration.bucket(tokens)
        now = self._measured(certainty, knobs, bucket)
        settings = []
        for setting in calibration.frontier(bucket):
            checked = self.knobs.check(setting.knobs)
            if permits(checked) and self._is_surer(certainty, checked, now, bucket):
                settings.append(checked)
        reaching = [index for index, each in enumerate(settings) if self._reaches(logits, each, tokens, goal)]
        return settings[max(reaching, default=0) :]

    def _reaches(self, logits: Logits, knobs: Knobs, tokens: int, goal: float) -> bool:
        value = self.probability(logits, knobs, tokens)
        return value is not None and value >= goal

    def _margins(self, logits: Logits) -> npt.NDArray[np.float64]:
        manifest = self.manifest
        ours, _ = margins(logits, logits, task=manifest.task, thresholds=manifest.thresholds)
        return ours

    def _is_surer(self, certainty: Certainty, knobs: Knobs, now: SettingCertainty | None, bucket: int) -> bool:
        """Whether margins move less at a setting than at the one of now, of which None is known to be sure."""
        if knobs == self.knobs.exact() or now is None:
            return True
        setting = self._measured(certainty, knobs, bucket)
        return setting is not None and setting.scale[bucket] < now.scale[bucket]

    def _measured(self, certainty: Certainty, knobs: Knobs, bucket: int) -> SettingCertainty | None:
        """What was measured at a setting, or at the surest one that is in no knob more accurate."""
        rows = certainty.settings
        same = next((row for row in rows if row.knobs == knobs), None)
        no_better = (row for row in rows if self._no_better(row.knobs, knobs))
        return same or min(no_better, key=lambda row: row.scale[bucket], default=None)

    def _no_better(self, setting: Mapping[str, float], knobs: Knobs) -> bool:
        rows = self.knobs.rows.values()
        return all(accuracy_rank(row, setting[row.name]) <= accuracy_rank(row, knobs[row.name]) for row in rows)
