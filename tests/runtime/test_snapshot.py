"""A loaded bundle works on the copy that was checked: what happens to its files afterwards changes nothing."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny

from attenuator import bundle
from attenuator.errors import BundleError
from attenuator.runtime import Model, Row, load, snapshot

FILES = (bundle.MANIFEST, bundle.MODEL, bundle.MODEL_DATA, bundle.TOKENIZER, bundle.PROBE)


@pytest.fixture(scope="module")
def with_data(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose weights lie in `model.onnx.data`."""
    folder = Path(shutil.copytree(bundles["softmax"], tmp_path_factory.mktemp("data") / "bundle"))
    model = onnx.load(folder / bundle.MODEL)
    onnx.save(model, folder / bundle.MODEL, save_as_external_data=True, location=bundle.MODEL_DATA, size_threshold=0)
    tiny.sign(folder)
    return folder


def answer(model: Model) -> bytes:
    encoded = model.encode("good film bad plot " * 40)
    [result] = model.run([Row(encoded.token_ids, encoded.type_ids, model.knobs.exact())])
    return result.logits.tobytes()


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def overwritten(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(np.random.default_rng(0).bytes(path.stat().st_size))
        os.fsync(stream.fileno())


def removed(path: Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def checked(with_data: Path) -> tuple[Path, bytes]:
    return with_data, answer(load(with_data))


@pytest.mark.parametrize("damage", [emptied, overwritten, removed])
def test_a_loaded_bundle_outlives_its_files(
    checked: tuple[Path, bytes], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """In a process of its own, which a mapped file that shrinks would end by SIGBUS."""
    folder, expected = checked
    copy = Path(shutil.copytree(folder, tmp_path / "bundle"))
    model = load(copy, check=False)
    for name in FILES:
        damage(copy / name)
    assert answer(model) == expected


def test_nothing_is_left_behind(checked: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    model = load(checked[0])
    assert list(tmp_path.glob("attenuator-*")) == []
    assert answer(model) == checked[1]
    with pytest.raises(BundleError):
        load(tmp_path / "nowhere")
    assert list(tmp_path.glob("attenuator-*")) == []


@pytest.fixture
def swapped(checked: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle whose files are all overwritten as soon as the checking process has ended."""
    copy = Path(shutil.copytree(checked[0], tmp_path / "bundle"))
    run = subprocess.run

    def run_and_overwrite(*arguments: object, **options: object) -> object:
        finished = run(*arguments, **options)  # type: ignore[call-overload]
        for name in FILES:
            overwritten(copy / name)
        return finished

    monkeypatch.setattr("attenuator.runtime.model.subprocess.run", run_and_overwrite)
    return copy


def test_what_is_loaded_is_what_was_checked(checked: tuple[Path, bytes], swapped: Path) -> None:
    assert answer(load(swapped)) == checked[1]


def test_no_room_for_the_copy(checked: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "places", lambda: ["/proc", "/nowhere"])
    with pytest.raises(BundleError, match="/proc, /nowhere have no room for .* set TMPDIR"):
        load(checked[0])


LOAD = "import sys; from attenuator.runtime import load; load(sys.argv[1])"


def load_under(limit: int, value: int, folder: Path) -> subprocess.CompletedProcess[str]:
    def lower() -> None:
        resource.setrlimit(limit, (value, value))

    command = [sys.executable, "-c", LOAD, str(folder)]
    return subprocess.run(command, preexec_fn=lower, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("limit", "value"), [(resource.RLIMIT_AS, 6 * 2**30), (resource.RLIMIT_CPU, 200), (resource.RLIMIT_CORE, 0)]
)
def test_good_bundles_load_under_the_shells_limits(checked: tuple[Path, bytes], limit: int, value: int) -> None:
    child = load_under(limit, value, checked[0])
    assert child.returncode == 0, child.stderr


def test_the_child_that_dies_has_the_last_word(checked: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr("attenuator.runtime.model.SAFE_PATH", "-Xfrozen_modules=\x1b[31mred")
    with pytest.raises(BundleError) as caught:
        load(checked[0])
    assert "the process that checks it ended with code 1 (" in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("name", [bundle.TOKENIZER, bundle.PROBE])
def test_a_file_as_large_as_weights_is_not_copied(bundles: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(bundles["yoso"], tmp_path / "yoso"))
    with (folder / name).open("r+b") as file:
        file.truncate(bundle.MAX_BYTES + 1)  # without content, so it takes no room here; its copy would
    with pytest.raises(BundleError, match=f"{name} has {bundle.MAX_BYTES + 1} bytes, must have at most"):
        load(folder, check=False)
