"""`calibration.json`: what a bundle's settings are worth, measured on texts that its training did not see.

Read and checked here and nowhere else. The file carries the revision of the bundle that it was measured on; with any
other bundle it is refused. A *setting* is one value for every knob of the bundle; the first one is exact. Which setting
is cheaper depends on the length of the text, so each bucket of lengths has an order of its own, its frontier.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from attenuator.bundle import CALIBRATION, Manifest, Sha256
from attenuator.calibration.lists import ListCalibration
from attenuator.calibration.records import MAX_SETTINGS, Count, Finite, Line, Positive, Proportion, Record, Seconds
from attenuator.errors import BundleError
from attenuator.json_lines import fields_once

FORMAT_VERSION = 1
MAX_BYTES = 16 * 2**20
MAX_BUCKETS = 64
MAX_DEVICES = 64
MAX_GOALS = 64
REMEDY = "calibrate again, or delete it"


class Bucket(Record):
    """Texts of similar lengths.

    Attributes:
        low: tokens of the shortest.
        high: tokens of the longest; the last bucket's is the bundle's `max_tokens`, the first bucket's low is 1.
        texts: how many texts were measured.
        frontier: places in `Calibration.settings`, in order of falling predicted time at these lengths; the first is 0,
            the exact setting. Settings that another one beats in both time and agreement are left out. Without any, all
            settings are in the order of the file.
    """

    low: Positive
    high: Positive
    texts: Positive
    frontier: Annotated[list[Count], Field(max_length=MAX_SETTINGS)] = []


class Setting(Record):
    """One value for every knob, and what it was worth.

    Attributes:
        knobs: value by knob name; all knobs of the bundle.
        agreement: share of texts whose answer agrees with the reference's, one a bucket.
        accuracy: share of texts whose answer is the label given, one a bucket; empty where no labels were given.
        time: predicted time as a share of the exact setting's, one a bucket, at the median length of its texts; empty
            where nothing was predicted.
    """

    knobs: dict[str, Finite]
    agreement: list[Proportion]
    accuracy: list[Proportion] = []
    time: list[Seconds] = []


class SettingCertainty(Record):
    """How far one setting's answers lie from the exact ones; see `certainty`.

    Attributes:
        knobs: the setting.
        scale: typical distance of a margin from the exact one, in logits, one a bucket; 0 where none moved.
        intercept: of the log-odds that an answer agrees.
        slope: of the same, by how many scales the answer's margins are wide.
        sure: share of the texts of each bucket whose probability reaches each of `Certainty.goals`, `[buckets][goals]`.
    """

    knobs: dict[str, Finite]
    scale: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    intercept: Finite
    slope: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    sure: list[list[Annotated[float, Field(ge=0, le=1)]]]


class Certainty(Record):
    """From an answer's margins to the probability that it agrees with the reference's.

    Attributes:
        texts: how many it was fitted to; no answer but the reference's own is said to be surer than they can show.
        tolerance: in a regression, the distance within which scores agree, in its unit; else None.
        goals: probabilities, ascending.
        settings: every setting that was measured but the reference itself.
    """

    texts: Positive
    goals: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(max_length=MAX_GOALS)]
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    settings: Annotated[list[SettingCertainty], Field(max_length=MAX_SETTINGS)]

    @model_validator(mode="after")
    def fits_together(self) -> Self:
        """Checks what one field says about another."""
        if any(after <= before for before, after in pairwise(self.goals)):
            raise ValueError("goals must rise")
        if any(len(shares) != len(self.goals) for row in self.settings for shares in row.sure):
            raise ValueError(f"a setting must have one share for each of {len(self.goals)} goals")
        return self


class Speed(Record):
    """How long one text takes at one setting, by its length.

    Attributes:
        knobs: the setting.
        seconds: of one run of one text; one for each length in `Latency.tokens`.
        gain: ends of a 95 % interval of how many times as fast it is as the exact setting, taken in turns with it; one
            for each length. Two equal ends are modelled: the machine was busy. Empty in files from before the field.
    """

    knobs: dict[str, Finite]
    seconds: list[Seconds]
    gain: list[tuple[Seconds, Seconds]] = []


class Latency(Record):
    """How long texts take on one device.

    Attributes:
        device: its name, as `attenuator.runtime` and the processor report it.
        threads: inside one run.
        tokens: lengths that were timed, ascending.
        batch_share: time of a text in a full batch as a share of its time alone, one for each length, at the default.
        speeds: one a setting.
    """

    device: Line
    threads: Positive
    tokens: list[Positive]
    batch_share: list[Seconds]
    speeds: Annotated[list[Speed], Field(max_length=MAX_SETTINGS)]

    @model_validator(mode="after")
    def fits_together(self) -> Self:
        """Checks what one field says about another."""
        if not self.tokens or any(after <= before for before, after in pairwise(self.tokens)):
            raise ValueError("tokens must be one or more lengths that rise")
        rows: list[Sequence[object]] = [self.batch_share]
        for speed in self.speeds:
            rows += [speed.seconds, *([speed.gain] if speed.gain else [])]
        for row in rows:
            if len(row) != len(self.tokens):
                raise ValueError(f"there are {len(row)} times, must be one for each of {len(self.tokens)} lengths")
        return self


class Calibration(Record):
    """`calibration.json`.

    Attributes:
        format_version: of this file.
        revision: of the bundle that was measured.
        reference: revision of the bundle of the same checkpoint in fp32 whose exact answers all agreement is with; None
            where that is this bundle itself.
        confidence: of every interval and bound.
        data: name of the file of texts, without its folder.
        data_sha256: of its content.
        texts: how many were measured.
        buckets: in order of length, without gaps.
        settings: the exact one, then every other that is on the frontier of a bucket or among those of lists, and the
            bundle's defaults.
        certainty: how sure single answers are; None in files from before it was measured.
        latency: one a device and number of threads.
        default_agreement: share of answers that requests which set nothing are estimated to keep, see
            `default_setting`; None, as in files from before the field, serves them at the bundle's defaults.
        lists: what first steps keep of the order of lists; None where no lists were measured.
    """

    format_version: int
    revision: Sha256
    reference: Sha256 | None = None
    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    data: Line
    data_sha256: Sha256
    texts: Positive
    buckets: Annotated[list[Bucket], Field(min_length=1, max_length=MAX_BUCKETS)]
    settings: Annotated[list[Setting], Field(min_length=1, max_length=MAX_SETTINGS)]
    certainty: Certainty | None = None
    latency: Annotated[list[Latency], Field(max_length=MAX_DEVICES)] = []
    default_agreement: Annotated[float, Field(gt=0, le=1)] | None = None
    lists: ListCalibration | None = None

    @model_validator(mode="after")
    def fits_together(self) -> Self:
        """Checks what one field says about another."""
        if self.format_version != FORMAT_VERSION:
            raise ValueError(f"format_version is {self.format_version}, must be {FORMAT_VERSION}")
        gaps = any(after.low != before.high + 1 for before, after in pairwise(self.buckets))
        if self.buckets[0].low != 1 or gaps or any(row.low > row.high for row in self.buckets):
            raise ValueError("buckets must begin at 1 token and follow each other without gaps")
        for setting in self.settings:
            if len(setting.agreement) != len(self.buckets) or any(
                len(row) not in (0, len(self.buckets)) for row in (setting.accuracy, setting.time)
            ):
                raise ValueError(f"a setting must have one agreement for each of {len(self.buckets)} buckets")
            if setting.knobs.keys() != self.settings[0].knobs.keys():
                raise ValueError("settings must all have the same knobs")
        if self.lists and any(row.knobs.keys() != self.settings[0].knobs.keys() for row in self.lists.settings):
            raise ValueError("settings of lists must have the knobs of all others")
        if self.lists and self.lists.settings[0].knobs != self.settings[0].knobs:
            raise ValueError("settings of lists must begin with the first of all settings, the exact one")
        for one in self.certainty.settings if self.certainty else ():
            if {len(one.scale), len(one.sure)} != {len(self.buckets)}:
                raise ValueError(f"certainty must have one scale and shares for each of {len(self.buckets)} buckets")
        for row in self.buckets:
            if row.frontier and (row.frontier[0] != 0 or max(row.frontier) >= len(self.settings)):
                raise ValueError("a frontier must begin with 0, the exact setting, and name settings of the file")
            if len(set(row.frontier)) < len(row.frontier):
                raise ValueError("a frontier must name each setting once")
        return self

    def places(self, bucket: int) -> list[int]:
        """Places in `settings` of a bucket's settings, from the exact one to the cheapest."""
        return self.buckets[bucket].frontier or list(range(len(self.settings)))

    def frontier(self, bucket: int) -> list[Setting]:
        """A bucket's settings, from the exact one to the cheapest."""
        return [self.settings[place] for place in self.places(bucket)]

    def bounds(self, bucket: int) -> list[float]:
        """Lower bounds of the agreement of a bucket's settings, from the exact one on; 1 of the reference itself."""
        exact, *others = (setting.agreement[bucket].bound for setting in self.frontier(bucket))
        return [1.0 if self.reference is None else exact, *others]

    def expected_agreement(self, knobs: Mapping[str, float], tokens: int) -> float | None:
        """Share of the texts in a length's bucket on which a setting gave the exact answer; None where unknown."""
        setting = self.setting(knobs)
        return None if setting is None else setting.agreement[self.bucket(tokens)].value

    def setting(self, knobs: Mapping[str, float]) -> Setting | None:
        """What was measured at some knobs; None where nothing was."""
        for setting in self.settings:
            if setting.knobs == knobs:
                return setting
        return None

    def bucket(self, tokens: int) -> int:
        """Index of the bucket that a length belongs to; of lengths beyond all, the last."""
        return next((index for index, row in enumerate(self.buckets) if tokens <= row.high), len(self.buckets) - 1)


def shown(knobs: Mapping[str, float]) -> str:
    """A setting in words: every knob with its value; empty for a model without knobs."""
    return ", ".join(f"{name} {value:g}" for name, value in knobs.items())


def calibration_content(files: Path, folder: Path) -> bytes | None:
    """The bytes of a bundle's `calibration.json`; None where the bundle has none.

    Args:
        files: where the bundle's files are.
        folder: what error sentences call the bundle.

    Raises:
        BundleError: it is no plain file of the bundle's folder, too large or unreadable.
    """
    path = files / CALIBRATION
    where = f"bundle {folder}: {CALIBRATION}"
    if not path.exists() and not path.is_symlink():
        return None
    if not path.is_file():  # a pipe or a device never ends
        raise BundleError(f"{where} is not a file")
    if not path.resolve().is_relative_to(files.resolve()):
        raise BundleError(f"{where} is a link that leaves the folder")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BundleError(f"{where} has {path.stat().st_size} bytes, must have at most {MAX_BYTES}; {REMEDY}")
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{where} cannot be read: {error.strerror}") from None


def parse_calibration(content: bytes, folder: Path, manifest: Manifest) -> Calibration | None:
    """Checks what `calibration.json` says.

    Args:
        content: of the file.
        folder: what error sentences call the bundle.
        manifest: of the bundle.

    Returns:
        The calibration; None where it knows no agreement with the checkpoint: of a bundle that is not fp32, it was
        measured against the bundle's own rounded answers, as earlier versions did.

    Raises:
        BundleError: one sentence that names the field and what is wrong with it, or the other revision.
    """
    where = f"bundle {folder}: {CALIBRATION}"
    try:
        calibration = Calibration.model_validate_json(content)
        json.loads(content, object_pairs_hook=fields_once)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "content"
        reason = first["msg"].removeprefix("Value error, ")
        raise BundleError(f"{where}: {place}: {reason}; {REMEDY}") from None
    except ValueError as error:
        raise BundleError(f"{where}: {error}; {REMEDY}") from None
    if calibration.revision != manifest.revision:
        raise BundleError(
            f"{where} belongs to revision {calibration.revision[:12]!r}, but the bundle is revision "
            f"{manifest.revision[:12]!r}: {REMEDY}"
        )
    return None if manifest.rounded and calibration.reference is None else calibration


def read_calibration(folder: Path, manifest: Manifest) -> Calibration | None:
    """Reads and checks a bundle's `calibration.json`.

    Args:
        folder: the bundle.
        manifest: of the bundle.

    Returns:
        The calibration; None where the bundle has none, or one that says nothing, see `parse_calibration`.

    Raises:
        BundleError: the file is unreadable, too large, not as described here, or belongs to another revision.
    """
    content = calibration_content(folder, folder)
    return None if content is None else parse_calibration(content, folder, manifest)
