"""The JavaScript client on Node, against real servers; its types by TypeScript's compiler."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from service import Service

from attenuator.clients.answers import BY_STATUS
from attenuator.clients.retries import RETRIED_STATUS
from attenuator.serve.api.errors import error_type

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "clients/js", Path(__file__).parent / "js"
COMPILER = PACKAGE / "node_modules/.bin/tsc"
BUNDLE = ROOT / "examples/bundles/reviews"
KEY = "a-key-for-tests"
OLDEST_NODE = (20, 3)


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """What a program prints; fails where it does."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def has_node() -> bool:
    if shutil.which("node") is None:
        return False
    major, minor, _ = run("node", "--version").removeprefix("v").split(".")
    return (int(major), int(minor)) >= OLDEST_NODE


needs_node = pytest.mark.skipif(not has_node(), reason="Node 20.3 or newer is not installed: apt-get install nodejs")


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    one = Service([BUNDLE])
    yield one
    assert one.stop() == 0, one.log()


@pytest.fixture(scope="module")
def narrow() -> Iterator[Service]:
    """One that takes a request at a time, and wants a key."""
    one = Service([BUNDLE], "--max-requests", "1", "--api-key", KEY)
    yield one
    assert one.stop() == 0, one.log()


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service([tiny.reranker(tmp_path_factory.mktemp("rankers") / "rank"), BUNDLE])
    yield one
    assert one.stop() == 0, one.log()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of a program that has the client installed."""
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/attenuator-client").symlink_to(PACKAGE)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    return tmp_path


def address(service: Service) -> str:
    return f"http://{service.host}:{service.port}"


@needs_node
def test_on_node(server: Service, narrow: Service, ranker: Service) -> None:
    codes = [(status, error_type(kind.__name__)) for status, kind in BY_STATUS.items()]
    printed = run(
        *("node", "--test", "--test-reporter=tap", TESTS / "client.test.js"),
        ATTENUATOR_URL=address(server),
        ATTENUATOR_NARROW_URL=address(narrow),
        ATTENUATOR_RANKER_URL=address(ranker),
        ATTENUATOR_KEY=KEY,
        CODES_BY_STATUS=json.dumps([*codes, (502, "unexpected_answer")]),
        RETRIES=json.dumps({"statuses": [*BY_STATUS, 500, 502], "sent_again": sorted(RETRIED_STATUS)}),
    )
    tests = (TESTS / "client.test.js").read_text(encoding="utf-8").count("\ntest(")
    assert f"# pass {tests}\n" in printed


@needs_node
def test_what_the_readme_shows_runs(server: Service, project: Path) -> None:
    shown = re.findall(r"^```js\n(.*?)^```", (PACKAGE / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    printed = []
    for block in shown:
        (project / "shown.js").write_text(block.replace("http://127.0.0.1:8000", address(server)), encoding="utf-8")
        printed.append(run("node", "shown.js", cwd=project).splitlines())
    [[answer, error], labels] = printed
    assert re.fullmatch(r"positive 0\.\d+ { num_hashes: 16 }", answer)
    assert re.fullmatch(r"invalid_request min_agreement a number above 0, at most 1 422", error)
    assert labels == ["positive", "negative"]


@pytest.mark.skipif(not COMPILER.exists(), reason="TypeScript is not installed: npm install --prefix clients/js")
def test_types_take_what_the_service_takes_and_refuse_the_rest(project: Path) -> None:
    shutil.copy(TESTS / "sample.ts", project)
    strict = ("--noEmit", "--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes")
    run(
        COMPILER,
        *strict,
        "--target",
        "es2022",
        "--module",
        "nodenext",
        "--lib",
        "es2022,dom",
        "--types",
        "",
        "sample.ts",
        cwd=project,
    )
