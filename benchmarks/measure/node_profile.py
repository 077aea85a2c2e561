"""Where a graph's time goes, as ONNX Runtime's own profiler counts it."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto

from attenuator.runtime.device import CPU
from attenuator.runtime.session import make_options, open_session

WARM_UP_RUNS, PROFILED_RUNS = 2, 10
_SUFFIX = "_kernel_time"  # of a node's own event

# From a node's type and name to the line of the profile that it counts in.
Kind = Callable[[str, str], str]


def node_times(
    model: ModelProto, feeds: Mapping[str, Any], kind_of: Kind = lambda op_type, name: op_type
) -> dict[str, dict[str, float]]:
    """Time by kind of node in the optimised graph, on one thread, with the options of serving.

    Args:
        model: with its weights inside.
        feeds: inputs by name.
        kind_of: what nodes are counted together; those of one type by default.

    Returns:
        By kind, most expensive first: nodes in the graph, microseconds (elapsed, each node's shortest run: the
        profiler has no CPU clock), share of all nodes' time.
    """
    options = make_options(threads=1)
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = open_session(model.SerializeToString(), options, CPU)
        for _ in range(WARM_UP_RUNS + PROFILED_RUNS):
            session.run(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    spent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            name = event["name"].removesuffix(_SUFFIX)
            spent[kind_of(event["args"]["op_name"], name)][name].append(event["dur"])
    totals = {
        kind: float(sum(min(durations[WARM_UP_RUNS:]) for durations in nodes.values())) for kind, nodes in spent.items()
    }
    whole = sum(totals.values())
    return {
        kind: {"nodes": len(spent[kind]), "us": total, "share": total / whole}
        for kind, total in sorted(totals.items(), key=lambda item: -item[1])
    }
