"""Answers the README's request, examples/requests/contract.json, at several numbers of hashes: score and time of each.

    python -m benchmarks.models.demo_request && make gen      # measures, then writes the README's table

The settings take turns in one process, on one thread; the time is the model's, without tokenizing and HTTP. Writes
benchmarks/results/demo_request.json.
"""

import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from attenuator.runtime.batch import Row
from attenuator.runtime.model import load
from benchmarks.measure import record
from benchmarks.measure.kernels import in_model
from benchmarks.measure.program import parser_for
from benchmarks.measure.timing import interleave

REQUEST = record.ROOT / "examples" / "requests" / "contract.json"
BUNDLES = record.ROOT / "examples" / "bundles"
NUM_HASHES = (8, 32, 0)


def measure(seconds: float) -> dict[str, Any]:
    """Times the request's first text at each setting.

    Args:
        seconds: about how long the rounds may last; there are three at least.

    Returns:
        Tokens, the label that is best at the last setting, and a row per setting: `num_hashes`, that label's `score`
        and the timing.
    """
    request = json.loads(REQUEST.read_text(encoding="utf-8"))
    model = load(BUNDLES / request["model"], threads=1)
    encoded = model.encode(request["inputs"][0])
    rows = {
        num_hashes: Row(encoded.token_ids, encoded.type_ids, {"num_hashes": num_hashes}, request["seed"])
        for num_hashes in NUM_HASHES
    }
    timings = interleave({str(m): partial(model.run, [row]) for m, row in rows.items()}, seconds=seconds)
    scores = {m: dict(model.predict(model.run([row])[0].logits).ranking) for m, row in rows.items()}
    best = max(scores[NUM_HASHES[-1]].items(), key=lambda item: item[1])[0]
    return {
        "tokens": len(encoded.token_ids),
        "label": best,
        "settings": [{"num_hashes": m, "score": scores[m][best], **timings[str(m)].record()} for m in NUM_HASHES],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=20)
    options = parser.parse_args(arguments)
    operators = in_model(BUNDLES / json.loads(REQUEST.read_text(encoding="utf-8"))["model"])
    head = record.origin(sys.argv[1:] if arguments is None else arguments, operators)
    record.write(options.output or record.RAW / "demo_request.json", head | record.cpu() | measure(options.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
