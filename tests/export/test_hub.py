"""Checkpoints of the Hugging Face hub: from its cache, and over HTTP from a server that answers as the hub does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from attenuator.bundle import read_manifest
from attenuator.errors import ExportError
from attenuator.export.hub import FILES, PICKLES, SAFETENSORS, is_hub_id
from attenuator.export.place import place_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SENTENCES = """
import sys
from attenuator.errors import ExportError
from attenuator.export.place import place_of
for source in sys.argv[1:]:
    try:
        print(place_of(source).path)
    except ExportError as error:
        print(error)
"""


@dataclass
class Hub:
    """A server of models, by id; a text in place of a folder is the hub's code of an error."""

    models: dict[str, Path | str]
    asked: list[str] = field(default_factory=list)
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    """The three routes that a download asks: of a revision, of its files, of a file."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        """Is silent."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        api = parts[0] == "api"
        name, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        model = self.hub.models.get(name, "RepoNotFound")
        if isinstance(model, str):
            status = {"RepoNotFound": 404, "GatedRepo": 403, "": 401}[model]
            return self.send(status, b"{}", {"X-Error-Code": model} if model else {})
        if rest[0] == "revision":
            if rest[1] not in ("main", COMMIT):
                return self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self.send(200, json.dumps({"id": name, "sha": COMMIT, "siblings": []}).encode())
        files = {str(each.relative_to(model)): each.read_bytes() for each in model.rglob("*") if each.is_file()}
        if rest[0] == "tree":
            rows = [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in files.items()
            ]
            return self.send(200, json.dumps(rows).encode())
        path = "/".join(rest[2:])
        self.hub.asked.append(path)
        etag = f'"{hashlib.sha1(files[path]).hexdigest()}"'
        return self.send(200, files[path], {"ETag": etag, "X-Repo-Commit": COMMIT})

    def send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub(checkpoint: Callable[[str], Path], tmp_path: Path) -> Iterator[Hub]:
    model = tmp_path / "model"
    model.symlink_to(checkpoint("bert"))
    served = Hub({"org/tiny": model, "org/gated": "GatedRepo", "org/refused": ""})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"hub": served}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    served.address = f"http://127.0.0.1:{server.server_port}"
    yield served
    server.shutdown()
    server.server_close()


def run(*words: str, home: Path, code: int = 0, cwd: Path | None = None, **environment: str) -> str:
    """What a program of its own prints, whose `huggingface_hub` has another cache."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    variables |= {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **environment}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=variables, cwd=cwd, timeout=300
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr * bool(code)


def cached(home: Path, checkpoint: Path, name: str = "models--org--tiny") -> Path:
    """A checkpoint laid out as the hub's cache does."""
    folder = home / "hub" / name
    (folder / "snapshots").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).symlink_to(checkpoint)
    return folder / "snapshots" / COMMIT


def test_export_takes_an_id_from_the_cache_without_a_network(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    cached(tmp_path, checkpoint("bert"))
    words = ("-m", "attenuator", "export", f"org/tiny@{COMMIT}", "--output", str(tmp_path / "bundle"))
    run(*words, home=tmp_path, HF_HUB_OFFLINE="1")
    assert read_manifest(tmp_path / "bundle").provenance.source == f"org/tiny@{COMMIT}"


def test_only_what_loading_reads_is_downloaded_and_then_it_is_there_offline(
    hub: Hub, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tmp_path / "with more"
    (model / "onnx").mkdir(parents=True)
    kept = {each.name for each in checkpoint("bert").iterdir()}
    for each in checkpoint("bert").iterdir():
        (model / each.name).write_bytes(each.read_bytes())
    for name in (
        "tf_model.h5",
        "flax_model.msgpack",
        "onnx/model.onnx",
        "onnx/config.json",
        "pytorch_model.bin",
        "a.py",
    ):
        (model / name).write_bytes(b"large")
    hub.models["org/tiny"] = model
    [folder] = run("-c", SENTENCES, "org/tiny", home=tmp_path, HF_ENDPOINT=hub.address).split()
    assert {each.name for each in Path(folder).iterdir()} == set(hub.asked) == kept
    assert Path(folder, "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert run("-c", SENTENCES, "org/tiny", home=tmp_path, HF_HUB_OFFLINE="1").split() == [folder]


def test_weights_in_the_old_format_are_downloaded_where_there_are_no_others(
    hub: Hub, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    hub.models["org/tiny"] = checkpoint("bert-multi-label")
    [folder] = run("-c", SENTENCES, "org/tiny", home=tmp_path, HF_ENDPOINT=hub.address).split()
    assert Path(folder, "pytorch_model.bin").is_file()


def test_why_an_id_cannot_be_had_is_one_sentence_each(hub: Hub, tmp_path: Path) -> None:
    sources = ("org/none", "org/gated", "org/refused", "org/tiny@v9")
    none, gated, refused, revision = run("-c", SENTENCES, *sources, home=tmp_path, HF_ENDPOINT=hub.address).splitlines()
    assert none == (
        f"'org/none' is not a folder here, and {hub.address} has no model 'org/none' that it shows you: check the id; "
        "for a private one set HF_TOKEN"
    )
    assert f"it is gated on {hub.address}: accept its conditions at {hub.address}/org/gated, and set HF_TOKEN" in gated
    assert f"{hub.address} refuses it (status 401): HF_TOKEN is wrong or may not read it" in refused
    assert f"'org/tiny' on {hub.address} has no revision 'v9'" in revision


def test_a_hub_out_of_reach_and_an_empty_cache_are_told_apart(tmp_path: Path) -> None:
    away = "http://127.0.0.1:9"
    [unreachable] = run("-c", SENTENCES, "org/tiny", home=tmp_path, HF_ENDPOINT=away).splitlines()
    assert f"'org/tiny' is not a folder here, and {away} gives no answer for it (" in unreachable
    assert unreachable.endswith("check the network, or HF_ENDPOINT")
    [offline] = run("-c", SENTENCES, "org/tiny", home=tmp_path, HF_HUB_OFFLINE="1").splitlines()
    assert offline == (
        "'org/tiny' is not a folder here, and the Hugging Face cache lacks it, while HF_HUB_OFFLINE forbids to "
        "download: unset that"
    )


def test_a_folder_stays_a_folder_and_other_words_say_what_they_could_be(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "tiny").symlink_to(checkpoint("bert"))
    cached(tmp_path, checkpoint("roberta"))
    sources = ("org/tiny", "nowhere", "./org/none", "a/b/c")
    folder, *others = run("-c", SENTENCES, *sources, home=tmp_path, cwd=tmp_path, HF_HUB_OFFLINE="1").splitlines()
    assert folder == "org/tiny"
    allowed = "SOURCE is a checkpoint folder, a Hugging Face id (org/name) or FILE.py:NAME"
    assert others == [f"'{source}' is not a folder; {allowed}" for source in sources[1:]]


@pytest.mark.parametrize("key", ["bert", "roberta", "encoder-yoso", "bert-multi-label"])
def test_every_file_that_is_saved_is_fetched(checkpoint: Callable[[str], Path], key: str) -> None:
    known = {*FILES, *SAFETENSORS, *PICKLES}
    assert {each.name for each in checkpoint(key).iterdir()} <= known


@pytest.mark.parametrize("revision", ["../../x", "a..b", "a\nb", "\x1b[2J", "a b"])
def test_a_revision_that_leads_elsewhere_is_refused_before_the_hub_is_asked(revision: str) -> None:
    with pytest.raises(ExportError) as refused:
        place_of(f"org/tiny@{revision}")
    sentence = f"the revision of 'org/tiny' is {revision!r}, must be a branch, tag or commit of letters, digits, "
    assert str(refused.value) == sentence + "'.', '_', '/' and '-', without '..'"


@pytest.mark.parametrize("word", ["bert-base-uncased", "/tmp/a", "../a/b", "a/b/c", "a b/c", "a/b@", "a/b:c"])
def test_words_that_are_no_id(word: str) -> None:
    assert not is_hub_id(word)
