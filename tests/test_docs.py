"""What the documents say is what the code does."""

import ast
import asyncio
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import SHELL, blocks_of, documents
from starlette.types import Message, Receive, Scope, Send

from attenuator import __version__
from attenuator.__main__ import COMMANDS, main
from attenuator.classify_request import ClassifyRequest
from attenuator.ops import KNOBS
from attenuator.runtime.device import INSTALL
from attenuator.serve import events
from attenuator.serve.access.keys import parse_keys
from attenuator.serve.accuracy.goals import GOALS
from attenuator.serve.api.documentation import CLASSIFY_ANSWERS
from attenuator.serve.api.errors import STATUS
from attenuator.serve.observe.logs import JsonFormatter, RequestLog

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = documents()
BESIDE_BENCHMARKS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks").rglob("*.md"))
README_WORDS, README_NUMBERS, PAGES_WORDS = 600, 40, 15_000


def blocks(document: str, *languages: str) -> list[str]:
    return [block.text for block in blocks_of(document, *languages)]


def test_generated_blocks_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/gen.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_gpu_page_and_refusals_install_for_cuda_in_the_same_words() -> None:
    assert f"`{INSTALL}`" in (ROOT / "docs/gpu.md").read_text(encoding="utf-8")


def test_readme_and_pages_are_short() -> None:
    """Words as `wc -w` counts them: the README's, and those of all pages for users together."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
    assert len(readme.split()) <= README_WORDS
    assert len(re.findall(r"\d[\d.,]*", readme)) <= README_NUMBERS
    assert sum(len(page.split()) for page in pages) <= PAGES_WORDS


@pytest.mark.parametrize("document", [*DOCUMENTS, *BESIDE_BENCHMARKS, "examples/README.md", "export/README.md"])
def test_links_lead_to_files_and_headings(document: str) -> None:
    page = ROOT / document
    for target in re.findall(r"\]\(([^)#\s]*(?:#[^)\s]*)?)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), f"{document}: {target}"
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in anchors, f"{document}: {target}"


def test_knobs_page_names_every_knob_and_some_page_every_command() -> None:
    knobs = (ROOT / "docs/knobs.md").read_text(encoding="utf-8")
    text = "\n".join((ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS)
    assert [name for name in KNOBS if f"## `{name}`" not in knobs] == []
    assert [name for name in COMMANDS if f"attenuator {name}" not in text] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_blocks_compile(document: str) -> None:
    for block in blocks_of(document, "python"):
        compile(block.text, str(block), "exec")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_shell_blocks_name_real_targets_commands_and_flags(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    shell = "\n".join(blocks(document, *SHELL)).replace("\\\n", " ")
    for target in re.findall(r"^\s*(?:\$ )?make ([a-z][\w-]*)", shell, re.M):
        assert target in targets, f"{document}: make {target}"
    for command, rest in re.findall(r"\battenuator ([a-z]\w*)(.*)", shell):
        assert command in COMMANDS, f"{document}: attenuator {command}"
        capsys.readouterr()
        with pytest.raises(SystemExit, match="0"):
            sys.exit(main([command, "--help"]))
        help_text = capsys.readouterr().out
        for flag in re.findall(r"(?<=\s)--[a-z][\w-]*", rest.partition("|")[0].partition("#")[0]):
            assert flag in help_text, f"{document}: attenuator {command} {flag}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_requests_have_fields_that_are_served(document: str) -> None:
    bodies = re.findall(r"-d '(.*?)'", "\n".join(blocks(document, *SHELL)).replace("\\\n", " "), re.S)
    for body in bodies:
        assert set(json.loads(body)) <= set(ClassifyRequest.model_fields), f"{document}: {body}"


def test_git_ignores_what_the_commands_of_the_pages_write() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    for document in DOCUMENTS:
        shell = "\n".join(blocks(document, *SHELL)).replace("\\\n", " ")
        for folder in re.findall(r"--output ([\w-]+)(?:/\S*)?(?=\s|$)", shell):
            assert f"/{folder}/" in ignored, f"{document}: --output {folder}"


def test_openapi_lists_every_status() -> None:
    assert set(STATUS.values()) == set(CLASSIFY_ANSWERS) - {200}


def test_changelog_names_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == "Unreleased"
    assert __version__ in headings


@pytest.mark.parametrize("document", DOCUMENTS)
def test_json_and_yaml_blocks_can_be_read(document: str) -> None:
    yaml = pytest.importorskip("yaml", reason="YAML blocks need the package pyyaml, which comes with the extra 'docs'")
    for block in blocks(document, "json"):
        json.loads(block)
    for block in blocks(document, "yaml"):
        assert yaml.safe_load(block)


def test_the_keys_that_their_page_shows_are_read() -> None:
    [shown] = [block for block in blocks("docs/api-keys.md", "json") if '"requests_per_s"' in block]
    assert [key.name for key in parse_keys(shown, "api-keys.md")] == ["search", "batch"]


def noted_fields() -> set[str]:
    """Names of the fields that requests have in the log: what is noted of them, and what every line has."""
    names = set(GOALS)
    for path in (ROOT / "serve").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "events.note":
                names |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return names


def test_operations_page_lists_every_field_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = page.partition("\n## Log\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.M)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    with caplog.at_level(logging.INFO, logger="attenuator.access"):
        asyncio.run(RequestLog(answer_nothing, events.Listeners())(REQUEST, no_message, ignore_message))
    [record] = caplog.records
    known = events.request_id.set("an-id")
    always = set(json.loads(JsonFormatter().format(record)))
    events.request_id.reset(known)
    assert always | noted_fields() | {"trace_id", "exception"} == listed


REQUEST = {"type": "http", "method": "GET", "headers": []}


async def answer_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """An application whose client leaves."""


async def no_message() -> Message:
    return {"type": "http.disconnect"}


async def ignore_message(message: Message) -> None:
    """Sends it nowhere."""
