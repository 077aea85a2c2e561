"""Every code block of the documents is run, page by page in its order, or says why not (`make docs-test`).

A page runs in a scratch folder that looks like a checkout, against the server that `make demo` starts; `attenuator
serve` in a page starts one of its own, which the rest of that page asks. What pages take for granted is there:
`path/to/checkpoint`, `texts.txt`, `held-out.jsonl`, bundles that may be written to. Each process of pytest-xdist has
such a folder and a server of its own, so that pages run side by side.
"""

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from blocks import JAVASCRIPT, PYTHON, REASONS, ROOT, RUN, SHELL, SHOWN, Block, blocks_of, documents
from service import Service, Started

DEMO = "127.0.0.1:8000"
PAGE_TIMEOUT_S = 900
# In this folder of the checkout a page may write.
COPIED = ("examples", "bundles")
PRELUDE = f"""set -euo pipefail
server=
trap '[ -z "$server" ] || kill "$server"' EXIT
block() {{ echo "== $1" >&2; }}
# An environment that was copied names its old place.
source() {{ builtin source "$@"; export PATH="{Path(sys.executable).parent}:$PATH"; }}
curl() {{ command curl --fail-with-body "$@"; }}
attenuator() {{
  if [ "$1" != serve ]; then command attenuator "$@"; return; fi
  export PORT=$(python -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
  command attenuator "$@" --host 127.0.0.1 --port "$PORT" 2>serve.log & server=$!
  until command curl -sf "http://127.0.0.1:$PORT/health/ready" >/dev/null; do
    kill -0 "$server" || {{ cat serve.log >&2; exit 1; }}
    sleep 0.2
  done
}}
# The demo is running; what other targets do is tried by itself.
make() {{ for target in "$@"; do [ "$target" = demo ] || command make -n "$target" >/dev/null; done; }}
export -f block
"""


def blocks_to_run(document: str) -> list[Block]:
    return [block for block in blocks_of(document, *RUN) if not block.reason]


# Those with the most blocks first, so that no process is left alone with a long one.
PAGES = sorted(filter(blocks_to_run, documents()), key=lambda document: len(blocks_to_run(document)), reverse=True)


@pytest.mark.parametrize("document", documents())
def test_blocks_are_run_or_say_why_not(document: str) -> None:
    for block in blocks_of(document):
        assert block.language in (*RUN, *SHOWN), f"{block}: a block's language must be one of {RUN + SHOWN}"
        assert block.reason is None or block.reason in REASONS, f"{block}: the reason must be one of {REASONS}"
        assert block.reason is None or block.language in RUN, f"{block}: a block that is not run needs no reason"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout, with what pages take for granted."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in (".git", COPIED[0], "build", "bundles", "tutorial", "checkpoints"):
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / COPIED[0], folder / COPIED[0], symlinks=False)
    bundles = folder.joinpath(*COPIED)
    shutil.copytree(bundles / "reviews", folder / "roots/reviews-2")

    def run(*command: object) -> None:
        subprocess.run([sys.executable, *map(str, command)], cwd=folder, check=True, timeout=PAGE_TIMEOUT_S)

    run("examples/tutorial/collect.py", "--output", "given", "--limit", 600)
    run("examples/tutorial/train.py", "given/train.jsonl", "--output", "path/to/checkpoint", "--epochs", 0.1)
    texts = [json.loads(line)["text"] for line in (folder / "given/train.jsonl").read_text().splitlines()]
    (folder / "texts.txt").write_text("\n".join(texts[:320]) + "\n", encoding="utf-8")
    short = [" ".join(text.split()[:15]) for text in texts[-420:]]
    (folder / "held-out.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in short))
    (folder / "reviews.csv").write_text('id,review\n1,"Good, warm."\n2,Dull.\n')
    (folder / "reviews.jsonl").write_text('{"id": 1, "body": "Good, warm."}\n{"id": 2, "body": "Dull."}\n')
    (folder / "node_modules").mkdir()
    (folder / "node_modules/attenuator-client").symlink_to(ROOT / "clients/js")
    return folder


@pytest.fixture(scope="module")
def demo(checkout: Path) -> Iterator[Service]:
    """What `make demo` serves."""
    started = Started(sorted(checkout.joinpath(*COPIED).iterdir()))
    yield started
    assert started.stop() == 0, started.log()


def program_of(block: Block, place: Path) -> str:
    """A block as lines of the page's shell program."""
    text = block.text.replace(DEMO, "127.0.0.1:${PORT}" if block.language in SHELL else "127.0.0.1:PORT")
    lines = [f"block {block}"]
    if block.language in SHELL:
        return "\n".join([*lines, text])
    name = f"block{block.line}" + (".py" if block.language in PYTHON else ".mjs")
    (place / name).write_text(text, encoding="utf-8")
    run = "python" if block.language in PYTHON else "node"
    return "\n".join([*lines, f'sed -i "s/127.0.0.1:PORT/127.0.0.1:$PORT/" {name}', f"{run} {name}"])


@pytest.mark.documents
@pytest.mark.parametrize("document", PAGES)
def test_blocks_of_a_page_run_in_their_order(document: str, checkout: Path, demo: Service, tmp_path: Path) -> None:
    blocks = blocks_to_run(document)
    if any(block.language in JAVASCRIPT for block in blocks) and shutil.which("node") is None:
        pytest.skip("there is no node to run the page's JavaScript")
    program = tmp_path / "page.sh"
    program.write_text("\n".join([PRELUDE, *(program_of(block, checkout) for block in blocks)]), encoding="utf-8")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PORT": str(demo.port),
    }
    page = subprocess.Popen(
        ["bash", str(program)],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = page.communicate(timeout=PAGE_TIMEOUT_S)
    finally:
        if page.poll() is None:
            os.killpg(page.pid, signal.SIGKILL)
    assert page.returncode == 0, output[-6000:]


@pytest.mark.documents
def test_the_error_that_the_errors_page_shows_is_answered(demo: Service) -> None:
    [shown] = blocks_of("docs/errors.md", "json")
    answer = demo.classify({"model": "reviews-mca", "inputs": "text", "keep": 2})
    assert answer.json() == json.loads(shown.text)


@pytest.mark.documents
@pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx to try the proxy's configuration")
def test_the_proxy_that_the_page_shows_passes_requests_on(demo: Service, tmp_path: Path) -> None:
    [shown] = blocks_of("docs/deploy.md", "nginx")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = shown.text.replace(DEMO, f"127.0.0.1:{demo.port}").replace("listen 8080", f"listen 127.0.0.1:{port}")
    path = "location /models/ { proxy_set_header Host $host; proxy_pass http://attenuator/; }\n    location = /metrics"
    site = site.replace("location = /metrics", path)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    own = "access_log off;\n" + "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)
    settings = tmp_path / "nginx.conf"
    user = f"user {getpass.getuser()};\n" if os.geteuid() == 0 else ""
    settings.write_text(
        f"{user}daemon off; pid {tmp_path}/pid; error_log stderr;\nevents {{}}\nhttp {{\n{own}{site}}}\n"
    )
    proxy = subprocess.Popen(["nginx", "-c", str(settings), "-p", str(tmp_path)])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=20)) as client:
            answer = client.post(
                "/v1/classify", json={"model": "reviews", "inputs": "word " * 300_000, "truncate": True}
            )
            assert answer.status_code == 200, answer.text
            assert len(answer.headers["X-Request-Id"]) == 32
            refused = client.post("/v1/classify", json={"model": "none", "inputs": "text"})
            assert refused.json()["error_type"] == "unknown_model"
            assert client.get("/metrics").status_code == 403
            page = client.get("/models/").text
            assets = re.findall(r'(?:src|href)="([^":]+\.(?:js|css))"', page)
            assert assets
            assert {client.get(f"/models/{asset}").status_code for asset in assets} == {200}
    finally:
        proxy.terminate()
        assert proxy.wait(timeout=10) == 0
