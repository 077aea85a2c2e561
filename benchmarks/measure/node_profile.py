"""Where a graph's time goes, as ONNX Runtime's own profiler counts it."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime
from onnx import ModelProto

from attenuator import ops

WARM_UP_RUNS, PROFILED_RUNS = 2, 10


def node_times(model: ModelProto, feeds: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Time by kind of node in the optimised graph, on one thread.

    Args:
        model: with its weights inside.
        feeds: inputs by name.

    Returns:
        By node type, most expensive first: nodes in the graph, microseconds (elapsed, each node's shortest run: the
        profiler has no CPU clock), share of all nodes' time.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False
    options.enable_profiling = True
    ops.register(options)
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for _ in range(WARM_UP_RUNS + PROFILED_RUNS):
            session.run(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    spent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]][event["name"]].append(event["dur"])
    totals = {
        kind: float(sum(min(durations[WARM_UP_RUNS:]) for durations in nodes.values())) for kind, nodes in spent.items()
    }
    whole = sum(totals.values())
    return {
        kind: {"nodes": len(spent[kind]), "us": total, "share": total / whole}
        for kind, total in sorted(totals.items(), key=lambda item: -item[1])
    }
