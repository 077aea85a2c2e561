"""The generated blocks of the pages of figures, for `scripts/gen.py`."""

from collections.abc import Callable
from functools import partial

from benchmarks.report import (
    added_time_tables,
    attention_tables,
    bert_small_tables,
    brownout_tables,
    documents,
    efficiency_tables,
    error_tables,
    lra_tables,
    profile_tables,
    score_tables,
    server_tables,
)

# Page, then block, then what makes it.
BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "benchmarks/operators/attention_error.md": {"attention-error": error_tables.attention_error},
    **{
        f"ops/{key}/README.md": {"times": partial(attention_tables.beside_nodes, key)}
        for key in attention_tables.ATTENTIONS
    },
    "benchmarks/papers/efficiency.md": {"efficiency": efficiency_tables.efficiency},
    "benchmarks/papers/long_range_arena.md": {"long-range-arena": lra_tables.long_range_arena},
    "benchmarks/models/profile_model.md": {"profile": profile_tables.profiles},
    "benchmarks/papers/bert_small.md": {"bert-small": bert_small_tables.bert_small},
    "benchmarks/papers/mca_tables.md": {"scores": score_tables.scores},
    "benchmarks/operators/operators.md": {"operators": documents.operators},
    "benchmarks/models/knobs.md": {"demo-request": documents.demo_request, "brownout": brownout_tables.brownout},
    "benchmarks/models/models.md": {"models": documents.models},
    "benchmarks/models/end_to_end.md": {"end-to-end": documents.served},
    "benchmarks/service/server.md": {"servers": server_tables.servers},
    "benchmarks/service/added_time.md": {"added-time": added_time_tables.added_time},
}
