"""A bundle appears whole or not at all: full disks, killed processes, and what they leave."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import files_up_to, refuse

from attenuator.bundle import MANIFEST
from attenuator.errors import AttenuatorError, ExportError
from attenuator.export.output import refuse_output, replace, staging_for
from attenuator.tuning import checkpoints

Get = Callable[[str], Path]
WRITES = """
import sys, time
from pathlib import Path
from attenuator.export.output import staging_for
with staging_for(Path(sys.argv[1])) as staging:
    (staging / "model.onnx").write_text("half")
    print(staging, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("size", [1024, 16384], ids=["tokenizer", "model"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(size: int, checkpoint: Get, tmp_path: Path) -> None:
    source = checkpoint("bert")
    with files_up_to(size):
        sentence = refuse(source, tmp_path, "softmax", schedule="none")
    assert sentence == f"output '{tmp_path / 'out' / 'bundle'}' cannot be written: File too large"


@pytest.mark.parametrize("name", ["bert", "encoder-softmax"])
def test_a_full_disk_leaves_no_half_of_a_trained_checkpoint(name: str, checkpoint: Get, tmp_path: Path) -> None:
    trainable = checkpoints.load(checkpoint(name))
    folder = tmp_path / "trained"
    with files_up_to(4096), pytest.raises(AttenuatorError, match="cannot be written: File too large; --resume goes on"):
        trainable.save(folder)
    assert list(folder.iterdir()) == []
    trainable.save(folder)
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert not (folder / "unfinished").exists()


def test_what_a_killed_export_leaves_is_removed_by_the_next_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path / name)], stdout=subprocess.PIPE, text=True)
        for name in ("killed", "living")
    ]
    try:
        killed, living = [Path(process.stdout.readline().strip()) for process in running if process.stdout]
        running[0].kill()
        running[0].wait()
        assert (killed / "model.onnx").exists()
        with staging_for(tmp_path / "next"):
            assert not killed.exists()
            assert (living / "model.onnx").exists()
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_what_killed_exports_of_older_versions_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".mca.k3x_9a2b", ".mca.k3x_9a2b.0123abcd", ".mca.settings", ".mca2.k3x_9a2b", ".mca.notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("model.onnx" if name != ".mca.settings" else "mine.txt")).write_text("half")
    with staging_for(tmp_path / "mca") as staging:
        (staging / MANIFEST).write_text("{}")
        replace(staging, tmp_path / "mca")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mca.notes", ".mca.settings", ".mca2.k3x_9a2b", "mca"]


def test_a_bundle_beside_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{}")
    (tmp_path / "report.html").write_text("")
    refuse_output(tmp_path)
    (tmp_path / "texts.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"holds 'texts\.txt' beside a bundle, must hold a bundle alone"):
        refuse_output(tmp_path)


def test_folders_whose_names_are_only_alike_stay(tmp_path: Path) -> None:
    names = [".my.unfinished.novel", ".bundle.replaced.backup"]
    for name in names:
        (tmp_path / name).mkdir()
    for _ in range(2):
        with staging_for(tmp_path / "bundle") as staging:
            (staging / MANIFEST).write_text("{}")
            replace(staging, tmp_path / "bundle")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "bundle"])


def test_an_old_bundle_that_a_killed_export_had_moved_away_is_removed_once_a_new_one_is_there(tmp_path: Path) -> None:
    old = tmp_path / ".bundle.replaced.abcd0123"
    old.mkdir()
    with staging_for(tmp_path / "bundle") as staging:
        (staging / MANIFEST).write_text("{}")
        assert old.exists()
        replace(staging, tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
