"""The calibration that comes with a bundle: carried with its copy, refused in one sentence if it cannot be meant."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import calibrations
import pytest
from list_calibrations import list_calibration

from attenuator import bundle
from attenuator.calibration import schema
from attenuator.errors import BundleError
from attenuator.runtime import Model, load

SETTINGS = [({"num_hashes": 0}, (100, 100)), ({"num_hashes": 64}, (97, 99)), ({"num_hashes": 8}, (60, 90))]
LATENCY = {
    "device": "cpu",
    "threads": 1,
    "tokens": [16, 4096],
    "batch_share": [0.5, 1.0],
    "speeds": [{"knobs": {"num_hashes": 0}, "seconds": [0.001, 0.1]}],
}


@pytest.fixture
def folder(bundles: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundles["yoso"], tmp_path / "yoso"))


@pytest.fixture(scope="module")
def content(models: dict[str, Model]) -> dict[str, Any]:
    revision = models["yoso"].manifest.revision
    return calibrations.calibration(revision, [512, 8192], SETTINGS, trials=100, latency=[LATENCY])


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
def test_a_calibration_is_loaded_with_its_bundle(folder: Path, content: dict[str, Any], check: bool) -> None:
    assert load(folder, check=False).calibration is None
    calibrations.write(folder, content)
    loaded = load(folder, check=check).calibration
    assert loaded == calibrations.parsed(content)


def test_what_is_loaded_is_what_was_checked(folder: Path, content: dict[str, Any], monkeypatch: Any) -> None:
    """The server reads the copy: what is written into the bundle meanwhile changes nothing."""
    calibrations.write(folder, content)
    from attenuator.runtime import model as module

    check = module.check_in_child

    def then_overwrite(*arguments: Any, **options: Any) -> None:
        check(*arguments, **options)
        (folder / bundle.CALIBRATION).write_text("garbage")

    monkeypatch.setattr(module, "check_in_child", then_overwrite)
    assert load(folder).calibration == calibrations.parsed(content)


def test_a_session_is_made_again_whatever_became_of_the_calibration(folder: Path, content: dict[str, Any]) -> None:
    calibrations.write(folder, content)
    model = load(folder, check=False)
    (folder / bundle.CALIBRATION).write_text("garbage")
    model.reopen()
    assert model.calibration == calibrations.parsed(content)


def change(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(content: dict[str, Any]) -> None:
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return apply


SETTING, COUNTS = ("settings", 1), ("settings", 1, "agreement", 0)
HOSTILE = {
    "revision": (change("revision", value="0" * 64), "belongs to revision"),
    "version": (change("format_version", value=2), "format_version is 2, must be 1"),
    "unknown field": (change("settings", 0, "speed", value=1), "settings.0.speed"),
    "NaN": (change(*COUNTS, "bound", value=float("nan")), "bound"),
    "infinity": (change(*SETTING, "knobs", "num_hashes", value=float("inf")), "num_hashes"),
    "unknown knob": (change(*SETTING, "knobs", value={"num_hash": 3}), "same knobs"),
    "unknown knobs": (lambda each: [s.update(knobs={"beta": 3}) for s in each["settings"]], "lacks num_hashes"),
    "other bundle's knob": (
        lambda each: [s["knobs"].update(alpha=0) for s in each["settings"]],
        "has no knob alpha: it has num_hashes",
    ),
    "too large": (change(*SETTING, "knobs", "num_hashes", value=100_000), "must be a whole number from 0 to 512"),
    "a fraction": (change(*SETTING, "knobs", "num_hashes", value=2.5), "must be a whole number from 0 to 512"),
    "a text": (change(*SETTING, "knobs", "num_hashes", value="64"), "num_hashes"),
    "true": (change(*SETTING, "knobs", "num_hashes", value=True), "num_hashes"),
    "first is not exact": (change("settings", 0, "knobs", "num_hashes", value=1), "settings.0 is not the exact"),
    "more successes than trials": (change(*COUNTS, "successes", value=10**6), "must be at most trials"),
    "a bound of 1": (change(*COUNTS, "bound", value=1.0), "bound"),
    "a bound above the share": (change(*COUNTS, "bound", value=0.99), "must fit 97 of 100"),
    "a huge number": (change(*COUNTS, "successes", value=10**400), "successes"),
    "trials without end": (change(*COUNTS, "trials", value=10**400), "trials: Input should be less than or equal to"),
    "texts without end": (change("texts", value=10**400), "texts: Input should be less than or equal to"),
    "gap": (change("buckets", 1, "low", value=600), "without gaps"),
    "buckets backwards": (change("buckets", 0, "high", value=0), "buckets"),
    "no buckets": (change("buckets", value=[]), "buckets"),
    "frontier": (change("buckets", 0, "frontier", value=[0, 7]), "frontier"),
    "frontier without exact": (change("buckets", 0, "frontier", value=[1]), "frontier"),
    "fewer agreements": (lambda each: each["settings"][2]["agreement"].pop(), "one agreement for each of 2"),
    "lengths": (change("latency", 0, "tokens", value=[16, 16]), "lengths that rise"),
    "times": (change("latency", 0, "speeds", 0, "seconds", value=[0.1]), "one for each of 2 lengths"),
    "time 0": (change("latency", 0, "speeds", 0, "seconds", value=[0.0, 1.0]), "seconds"),
    "time beyond floating point": (change("latency", 0, "speeds", 0, "seconds", value=[1e300, 1e308]), "seconds"),
    "time next to nothing": (change("latency", 0, "batch_share", value=[5e-324, 1.0]), "batch_share"),
    "a length that no logarithm takes": (change("latency", 0, "tokens", value=[16, 10**30]), "tokens"),
    "too many devices": (change("latency", value=[LATENCY] * 1000), "latency"),
    "too many settings": (lambda each: each.update(settings=each["settings"] * 50), "settings: "),
    "too many speeds": (change("latency", 0, "speeds", value=LATENCY["speeds"] * 2000), "speeds"),
    "endless frontier": (change("buckets", 0, "frontier", value=[0] * 100_000), "frontier"),
    "frontier in a circle": (change("buckets", 0, "frontier", value=[0, 1, 0]), "name each setting once"),
    "a speed's knob": (change("latency", 0, "speeds", 0, "knobs", value={"num_hashes": -1}), "latency.0.speeds.0"),
    "half a pair": (change("data", value="\ud800"), "Invalid JSON"),
    "control characters": (change("data", value="a\x1b[2Jb"), "data"),
    "a default of 0": (change("default_agreement", value=0), "default_agreement: Input should be greater than 0"),
    "a default above 1": (change("default_agreement", value=1.5), "default_agreement: Input should be less than or"),
    "a default in words": (change("default_agreement", value="x"), "default_agreement: Input should be a valid number"),
}


def test_a_first_step_outside_the_bounds_of_a_knob_is_refused(folder: Path, models: dict[str, Model]) -> None:
    kept = [[100] * 4] * 2
    written = list_calibration(models["yoso"], [({"num_hashes": 0}, kept), ({"num_hashes": 100_000}, kept)])
    calibrations.write(folder, written)
    with pytest.raises(BundleError, match=r"lists\.settings\.1\.knobs: num_hashes is 100000\.0, must be a whole"):
        load(folder, check=False)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_calibrations_are_refused_in_one_sentence(folder: Path, content: dict[str, Any], name: str) -> None:
    changed = copy.deepcopy(content)
    apply, part = HOSTILE[name]
    apply(changed)
    calibrations.write(folder, changed)
    with pytest.raises(BundleError) as caught:
        load(folder, check=False)
    sentence = str(caught.value)
    assert str(folder) in sentence
    assert "calibration.json" in sentence
    assert part in sentence
    assert sentence.endswith("calibrate again, or delete it")


FILES: dict[str, bytes] = {
    "empty": b"",
    "garbage": b"\x00\xff garbage",
    "a list": b"[]",
    "nothing": b"{}",
    "nested": b"[" * 200_000,
    "twice": b'{"revision": "a", "revision": "b"}',
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_calibration_are_refused(folder: Path, name: str) -> None:
    (folder / bundle.CALIBRATION).write_bytes(FILES[name])
    with pytest.raises(BundleError, match="calibration.json.*; calibrate again, or delete it"):
        load(folder, check=False)


def test_a_calibration_with_a_field_twice_is_refused(folder: Path, content: dict[str, Any]) -> None:
    calibrations.write(folder, content)
    path = folder / bundle.CALIBRATION
    path.write_text(path.read_text().replace('"texts":', '"texts": 9, "texts":', 1))
    with pytest.raises(BundleError, match="the field 'texts' occurs more than once; calibrate again"):
        load(folder, check=False)


def test_files_that_are_too_large_or_no_files_are_not_read(folder: Path) -> None:
    path = folder / bundle.CALIBRATION
    with path.open("wb") as stream:
        stream.truncate(schema.MAX_BYTES + 1)
    with pytest.raises(BundleError, match="must have at most"):
        load(folder, check=False)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BundleError, match="is not a file"):
        load(folder, check=False)
    path.unlink()
    path.symlink_to("missing")
    with pytest.raises(BundleError, match="is not a file"):
        load(folder, check=False)
    path.unlink()
    (folder.parent / "elsewhere.json").write_text("{}")
    path.symlink_to(folder.parent / "elsewhere.json")
    with pytest.raises(BundleError, match="calibration.json is a link that leaves the folder"):
        load(folder, check=False)


def test_the_process_that_checks_refuses_it_before_anything_else_is_read(folder: Path) -> None:
    (folder / bundle.CALIBRATION).write_text(json.dumps({"revision": 1}))
    (folder / bundle.TOKENIZER).chmod(0o600)
    with pytest.raises(BundleError, match="calibration.json"):
        load(folder)
