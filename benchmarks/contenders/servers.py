"""Servers that answer the same texts with the same fp32 weights: how each is started and asked, and what it says."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attenuator.load_generator import post, request_of
from benchmarks.measure.processes import free_port

PEERS = Path(__file__).with_name("peers")
REQUIREMENTS = PEERS / "requirements.txt"
OURS, LITSERVE, INFINITY = "attenuator", "LitServe", "infinity"
# Of 4 to 64 and 1 to 10 ms, all of which cost about the same CPU time an answer on one core: a wait that delays little.
LITSERVE_BATCH, LITSERVE_WAIT_S = 8, 0.002
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Variant:
    """One way to ask a server.

    Attributes:
        name: in tables.
        requests: one for each text.
        exact: whether its answers are to be those of the checkpoint but for rounding.
    """

    name: str
    requests: Sequence[bytes]
    exact: bool = True


@dataclass(frozen=True)
class Contender:
    """A server.

    Attributes:
        name: in tables.
        command: which starts it.
        ready_url: answers 200 once it serves.
        port: of the server on 127.0.0.1.
        variants: ways to ask it, the exact one first.
        scores: probability by label in an answer.
        environment: variables that it needs.
    """

    name: str
    command: Sequence[str]
    ready_url: str
    port: int
    variants: Sequence[Variant]
    scores: Callable[[Any], Scores]
    environment: Mapping[str, str] = field(default_factory=lambda: ENVIRONMENT)


def attenuator(
    bundle: Path, texts: Sequence[str], labels: int, mixture: Sequence[Mapping[str, Any]], floor: Mapping[str, Any],
    target_ms: float,
) -> Contender:  # fmt: skip
    """`attenuator serve` on a bundle: exactly, with a setting for each text in turn, and exactly but degradable.

    Args:
        bundle: of the checkpoint.
        texts: that are asked about.
        labels: of the model.
        mixture: fields of requests, of which text i has those at i modulo their number; the first are the exact values.
        floor: how far a request of the last variant may be lowered under load.
        target_ms: latency to hold; brownouts hold half of it as the wait.
    """
    exact, port = mixture[0], free_port()
    variants = [Variant("exact", [request_of(text, top_k=labels, **exact) for text in texts])]
    if len(mixture) > 1:
        mixed = [request_of(text, top_k=labels, **mixture[index % len(mixture)]) for index, text in enumerate(texts)]
        variants.append(Variant("mixed knobs", mixed, exact=False))
    if floor:
        lowered = [request_of(text, top_k=labels, **exact, degradable_to=floor) for text in texts]
        variants.append(Variant("exact, with brownout", lowered, exact=False))
    command = [sys.executable, "-m", "attenuator", "serve", str(bundle), "--port", str(port), "--threads", "1"]
    command += ["--brownout-target-ms", f"{target_ms / 2:g}"]
    return Contender(OURS, command, f"http://127.0.0.1:{port}/health/ready", port, variants, own_scores)


def litserve(python: Path, folder: Path, texts: Sequence[str]) -> Contender:
    """LitServe over ONNX Runtime, whose graph went through its transformer optimizer.

    Args:
        python: of the peers' environment.
        folder: has `fp32.onnx`, `tokenizer.json` and `config.json`.
        texts: that are asked about.
    """
    port = free_port()
    options = [str(folder), str(port), str(LITSERVE_BATCH), str(LITSERVE_WAIT_S)]
    command = [str(python), str(PEERS / "litserve_app.py"), *options]
    requests = [post("/predict", {"input": text}) for text in texts]
    url = f"http://127.0.0.1:{port}/health"
    return Contender(LITSERVE, command, url, port, [Variant("", requests)], lambda answer: dict(answer["scores"]))


def infinity(python: Path, folder: Path, texts: Sequence[str]) -> Contender:
    """Infinity with PyTorch over a checkpoint; its other engine for the CPU neither batches nor cuts texts.

    Args:
        python: of the peers' environment.
        folder: the checkpoint.
        texts: that are asked about.
    """
    port = free_port()
    flags = ["--model-id", str(folder), "--served-model-name", "model", "--engine", "torch", "--device", "cpu"]
    flags += ["--dtype", "float32", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    command = [str(python.with_name("infinity_emb")), "v2", *flags]
    requests = [post("/classify", {"model": "model", "input": [text]}) for text in texts]
    url = f"http://127.0.0.1:{port}/health"
    return Contender(INFINITY, command, url, port, [Variant("", requests)], infinity_scores)


def own_scores(answer: Any) -> Scores:
    """Of `attenuator serve`."""
    return {each["label"]: each["score"] for each in answer["predictions"][0]["scores"]}


def infinity_scores(answer: Any) -> Scores:
    """Of infinity."""
    return {each["label"]: each["score"] for each in answer["data"][0]}


def peers_python(folder: Path) -> Path:
    """The peers' environment, made where there is none.

    Returns:
        Its Python.
    """
    python, installed = folder / "bin" / "python", folder / "requirements.txt"
    requirements = REQUIREMENTS.read_text(encoding="utf-8")
    if not installed.is_file() or installed.read_text(encoding="utf-8") != requirements:
        print(f"benchmarks: installs the peers' servers into {folder}, once", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)], check=True)
        installed.write_text(requirements, encoding="utf-8")
    return python


def peers_versions(python: Path) -> dict[str, str]:
    """Versions of what the peers' environment holds, of the packages that the requirements name."""
    listing = subprocess.run(
        [str(python), "-m", "pip", "list", "--format", "json"], check=True, capture_output=True, text=True
    )
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    named = {line.partition("==")[0].partition("[")[0] for line in lines if "==" in line}
    installed = {each["name"].replace("_", "-"): each["version"] for each in json.loads(listing.stdout)}
    return {name: version for name, version in installed.items() if name in named}
