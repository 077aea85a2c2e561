"""What one text costs alone, beside the same text among 32: in the process, and in the service.

    python -m benchmarks.models.short_text BUNDLE [BUNDLE ...] [--tokens 10 47] [--keep 1 0.05]

Bundles have the knob `keep`; 4 layers of 256 channels are what profile_model.md tells of. CPU time on one thread, in
milliseconds a text, of contenders in turns: the median of a run, and the mean of the server's from a request to its
answer, with one text a request or 32 and a line of the log each. Prints a table.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attenuator.api import CLASSIFY
from attenuator.load_generator import post
from attenuator.runtime import Encoded, Row
from attenuator.runtime.model import Model, load
from benchmarks.measure.processes import cpu_s, serving
from benchmarks.measure.timing import interleave
from benchmarks.service.added_time import Connection

BATCH = 32
# Requests of one text in a turn, and turns.
REQUESTS, TURNS = 64, 15
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "that", "is", "good", "again"]


def encoded(model: Model, text: str) -> Encoded:
    """A text as a model takes it."""
    return model.encoder.encode(text, None, truncate=False, param="text")


def text_of(model: Model, tokens: int, seed: int) -> str:
    """A text of drawn words that a model's tokenizer cuts into so many tokens at most."""
    words = np.random.default_rng(seed).choice(WORDS, tokens).tolist()
    while len(encoded(model, " ".join(words)).token_ids) > tokens:
        words.pop()
    return " ".join(words)


def in_process(model: Model, texts: Sequence[str], shares: Sequence[float]) -> dict[tuple[float, int], float]:
    """Milliseconds of a run for each text, by share and by how many texts it has."""
    rows = [encoded(model, text) for text in texts]

    def run(share: float, count: int) -> Any:
        knobs = model.knobs.check({"keep": share})
        batch = [Row(one.token_ids, one.type_ids, knobs) for one in rows[:count]]
        return lambda: model.run(batch)

    contenders = {f"{share} {count}": run(share, count) for share in shares for count in (1, BATCH)}
    timings = interleave(contenders, seconds=4)
    return {
        (share, count): timings[f"{share} {count}"].median / count / 1000 for share in shares for count in (1, BATCH)
    }


def in_service(bundle: Path, texts: Sequence[str], shares: Sequence[float]) -> dict[tuple[float, int], float]:
    """Milliseconds of the server for each text, by share and by how many texts a request has."""
    spent = {(share, count): 0.0 for share in shares for count in (1, BATCH)}  # the clock of a process is coarse
    with serving(bundle, ["--threads", "1"], log_level="info") as (pid, port):
        connection = Connection(port)
        for turn in range(TURNS + 1):  # the first warms up
            for share, count in spent:
                requests = [
                    post(CLASSIFY, {"inputs": [*texts[at : at + count]], "keep": share})
                    for at in range(0, BATCH, count)
                ] * max(1, REQUESTS // BATCH)
                before = cpu_s(pid)
                for request in requests:
                    connection.ask(request)
                if turn:
                    spent[share, count] += 1000 * (cpu_s(pid) - before) / len(requests) / count / TURNS
        connection.close()
    return spent


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[10, 47])
    parser.add_argument("--keep", type=float, nargs="+", default=[1.0, 0.05])
    options = parser.parse_args(arguments)
    print("| | " + " | ".join(f"`keep` {share:g}, alone | of {BATCH}" for share in options.keep) + " |")
    print("| --- |" + " ---: | ---: |" * len(options.keep))
    for bundle in options.bundles:
        model = load(bundle, check=False, threads=1)
        for tokens in options.tokens:
            texts = [text_of(model, tokens, seed) for seed in range(BATCH)]
            for name, cost in (
                ("a run", in_process(model, texts, options.keep)),
                ("the service", in_service(bundle, texts, options.keep)),
            ):
                cells = [f"{cost[share, count]:.2f}" for share in options.keep for count in (1, BATCH)]
                print(f"| {bundle.name}, {tokens} tokens, {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
