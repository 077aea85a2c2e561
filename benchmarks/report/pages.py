"""The generated blocks of the pages of figures, for `scripts/gen.py`."""

from collections.abc import Callable
from functools import partial

from benchmarks.report import (
    added_time_tables,
    attention_tables,
    brownout_tables,
    documents,
    profile_tables,
    server_tables,
)

# Page, then block, then what makes it.
BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    **{
        f"ops/{key}/README.md": {"times": partial(attention_tables.beside_nodes, key)}
        for key in attention_tables.ATTENTIONS
    },
    "benchmarks/models/profile_model.md": {"profile": profile_tables.profiles},
    "benchmarks/operators/operators.md": {"operators": documents.operators},
    "benchmarks/models/knobs.md": {"demo-request": documents.demo_request, "brownout": brownout_tables.brownout},
    "benchmarks/models/models.md": {"models": documents.models},
    "benchmarks/models/end_to_end.md": {"end-to-end": documents.served},
    "benchmarks/service/server.md": {"servers": server_tables.servers},
    "benchmarks/service/added_time.md": {"added-time": added_time_tables.added_time},
}
