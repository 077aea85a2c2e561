"""Writes the Grafana dashboard, deploy/monitoring/dashboard.json; with --check, tells whether it is current.

Grafana's own library writes the form that Grafana reads; this file says what is shown. `$model` and `$instance` are
chosen on the dashboard, `$__rate_interval` is Grafana's: at least four scrapes. Run it as `make gen`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from attenuator.json_lines import in_lines

FILE = Path(__file__).resolve().parent.parent / "deploy" / "monitoring" / "dashboard.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS, HEIGHT = 24, 8
# Fields of interval variables, which the library writes on every variable and the schema has on none of ours.
OF_INTERVALS = {"auto", "auto_count", "auto_min"}
PER_S, SECONDS, SHARE, TOKENS, NUMBER, BYTES = "reqps", "s", "percentunit", "short", "none", "bytes"
HERE = '{instance=~"$instance"}'
MODEL = '{instance=~"$instance", model=~"$model"}'


class Plot(NamedTuple):
    """A panel.

    Attributes:
        title: above it.
        unit: of its axis, as Grafana names it.
        doc: what a reader must know to act on it.
        queries: expression by legend, in which {{label}} stands for a label's value.
        now: shows the newest value as a number, in place of a plot over time.
    """

    title: str
    unit: str
    doc: str
    queries: dict[str, str]
    now: bool = False


def rate(metric: str, by: str = "", where: str = MODEL) -> str:
    """How fast a counter rises, summed by labels."""
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({metric}{where}[$__rate_interval]))"


def quantile(share: float, histogram: str, by: str, where: str = MODEL) -> str:
    """A quantile of a histogram over all instances, by labels."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', f'le, {by}', where)})"


def mean(histogram: str, by: str, where: str = MODEL) -> str:
    """The mean of a histogram's values, by labels."""
    return f"{rate(f'{histogram}_sum', by, where)} / {rate(f'{histogram}_count', by, where)}"


def total(gauge: str, by: str = "", where: str = HERE) -> str:
    """A gauge summed over all instances, by labels."""
    return f"sum by ({by}) ({gauge}{where})" if by else f"sum({gauge}{where})"


ALL_HTTP = rate("attenuator_http_requests_total", where=HERE)
BUSY = '{instance=~"$instance", status=~"429|503|504"}'
BROWNOUT = '{instance=~"$instance", model=~"$model", chosen_by="brownout"}'
SAME = '{instance=~"$instance", model=~"$model", answer="same"}'
ROWS: dict[str, list[Plot]] = {
    "Now": [
        Plot("Ready", NUMBER, "Instances that answer requests.", {"": total("attenuator_ready")}, now=True),
        Plot("Requests", PER_S, "Of all routes, refused ones too.", {"": ALL_HTTP}, now=True),
        Plot(
            "Refused for load",
            SHARE,
            "Share of answers with 429, 503 or 504.",
            {"": f"({rate('attenuator_http_requests_total', where=BUSY)} or vector(0)) / {ALL_HTTP}"},
            now=True,
        ),
        Plot(
            "Predicted wait",
            SECONDS,
            "Predicted time of all that waits in a lane, where it is most. Replicas are scaled on it.",
            {"": f"max(attenuator_lane_queue_predicted_seconds{HERE})"},
            now=True,
        ),
        Plot(
            "Brownout",
            SHARE,
            "0 where knobs are as requested, 1 where they are at their floors.",
            {"": f"max(attenuator_brownout_level{HERE})"},
            now=True,
        ),
        Plot(
            "Low agreement",
            NUMBER,
            "Settings whose live answers agree with the exact ones less often than calibration promises.",
            {"": f"sum(attenuator_agreement_low{MODEL}) or vector(0)"},
            now=True,
        ),
    ],
    "Requests": [
        Plot(
            "Answered, by knob range",
            PER_S,
            "Requests with status 200, by the range that their knobs lie in; exact is the exact value.",
            {"{{model}} {{knobs}}": rate("attenuator_requests_total", "model, knobs")},
        ),
        Plot(
            "Answered, by who chose the knobs",
            PER_S,
            "caller set them, goal chose them, default is the model's, escalation ran again, brownout lowered them.",
            {"{{chosen_by}}": rate("attenuator_requests_total", "chosen_by")},
        ),
        Plot(
            "Answers, by status",
            PER_S,
            "429, 503 and 504 are load; 422 is a mistake of the caller; 500 is explained in the log.",
            {"{{status}}": rate("attenuator_http_requests_total", "status", HERE)},
        ),
        Plot(
            "Refusals, by kind",
            PER_S,
            "The error_type of the answers that are errors.",
            {"{{error_type}}": rate("attenuator_refusals_total", "error_type", HERE)},
        ),
    ],
    "Latency": [
        Plot(
            "Request, from header to answer",
            SECONDS,
            "Of POST /v1/classify and the routes of other servers, refused requests too.",
            {
                f"{percent} % {{{{route}}}}": quantile(percent / 100, "attenuator_http_request_seconds", "route", HERE)
                for percent in (50, 99)
            },
        ),
        Plot(
            "Compute, by knob range",
            SECONDS,
            "From a request's first batch to its last result: what the knob changes. 95 % are below.",
            {"{{model}} {{knobs}}": quantile(0.95, "attenuator_compute_seconds", "model, knobs")},
        ),
        Plot(
            "Wait for a batch, by knob range",
            SECONDS,
            "What load changes. 95 % are below.",
            {"{{model}} {{knobs}}": quantile(0.95, "attenuator_queue_seconds", "model, knobs")},
        ),
        Plot(
            "Tokenizing",
            SECONDS,
            "From a request's header to its tokens. 95 % are below.",
            {"{{model}}": quantile(0.95, "attenuator_tokenize_seconds", "model")},
        ),
    ],
    "Queue and batches": [
        Plot(
            "Predicted time that waits",
            SECONDS,
            "What the queue is predicted to take, by instance and lane; heavy holds long inputs.",
            {"{{instance}} {{lane}}": total("attenuator_lane_queue_predicted_seconds", "instance, lane")},
        ),
        Plot(
            "Predicted time that waits, by knob range",
            SECONDS,
            "What it waits at: cheap and dear knobs of each model.",
            {"{{model}} {{knobs}}": total("attenuator_queue_predicted_seconds", "model, knobs", MODEL)},
        ),
        Plot(
            "Predicted time that waits, by API key",
            SECONDS,
            "Empty where the service has one key or none.",
            {"{{key}} {{priority}} {{lane}}": total("attenuator_key_queue_predicted_seconds", "key, priority, lane")},
        ),
        Plot(
            "In progress",
            NUMBER,
            "Requests whose body has arrived, sequences that run and tokens that wait.",
            {
                "requests": total("attenuator_requests_in_progress"),
                "sequences {{lane}}": total("attenuator_running_sequences", "lane"),
                "tokens {{lane}}": total("attenuator_queue_tokens", "lane", MODEL),
            },
        ),
        Plot(
            "Tokens of a batch",
            TOKENS,
            "Mean. More at once means better use of the machine.",
            {"{{model}} {{lane}}": mean("attenuator_batch_tokens", "model, lane")},
        ),
        Plot(
            "Sequences of a batch",
            NUMBER,
            "Mean.",
            {"{{model}} {{lane}}": mean("attenuator_batch_sequences", "model, lane")},
        ),
        Plot(
            "Busy",
            SHARE,
            "Share of the time in which a lane runs a batch; near 1, an instance more helps.",
            {"{{instance}} {{lane}}": rate("attenuator_batch_seconds_sum", "instance, lane", HERE)},
        ),
    ],
    "Cost: predicted and actual": [
        Plot(
            "Actual time over predicted time",
            NUMBER,
            "1 where predictions are right. Waits, goals and replicas follow from predictions: far from 1 for long, "
            "calibrate on this machine.",
            {
                "{{model}} {{lane}}": f"{rate('attenuator_batch_seconds_sum', 'model, lane')} / "
                f"{rate('attenuator_batch_predicted_seconds_total', 'model, lane')}"
            },
        ),
        Plot(
            "Spread of a batch's actual over predicted time",
            NUMBER,
            "Half of the batches lie between 25 % and 75 %.",
            {
                f"{percent} % {{{{lane}}}}": quantile(percent / 100, "attenuator_batch_prediction_ratio", "lane")
                for percent in (25, 50, 75, 95)
            },
        ),
        Plot(
            "Tokens answered, by knob range",
            TOKENS,
            "Tokens of answered requests in a second.",
            {"{{model}} {{knobs}}": rate("attenuator_tokens_total", "model, knobs")},
        ),
        Plot(
            "Computing time, by API key",
            SHARE,
            "Seconds of batches in a second, shared out by predicted time.",
            {"{{key}} {{priority}}": rate("attenuator_key_compute_seconds_total", "key, priority", HERE)},
        ),
    ],
    "Agreement and brownout": [
        Plot(
            "Live agreement, over an hour",
            SHARE,
            "Share of texts whose answer is the bundle's own exact one, of those that ran again; what int8 or "
            "half precision rounds is not in it. Needs --shadow-share.",
            {
                "{{model}} {{knobs}}": f"sum by (model, knobs) (increase(attenuator_shadow_texts_total{SAME}[1h])) / "
                f"sum by (model, knobs) (increase(attenuator_shadow_texts_total{MODEL}[1h]))"
            },
        ),
        Plot(
            "Texts that ran again",
            PER_S,
            "Compared with the exact value, and drawn but not compared, by reason.",
            {
                "compared, {{answer}}": rate("attenuator_shadow_texts_total", "answer"),
                "not compared, {{reason}}": rate("attenuator_shadow_dropped_texts_total", "reason"),
            },
        ),
        Plot(
            "Brownout level",
            SHARE,
            "By instance; knobs fall only where the caller or --brownout-to allows it.",
            {"{{instance}}": f"max by (instance) (attenuator_brownout_level{HERE})"},
        ),
        Plot(
            "Share of answers with lowered knobs",
            SHARE,
            "Answers that a brownout gave other knobs than requested.",
            {
                "{{model}}": f"sum by (model) (rate(attenuator_requests_total{BROWNOUT}[$__rate_interval])) / "
                f"{rate('attenuator_requests_total', 'model')}"
            },
        ),
    ],
    "Health": [
        Plot(
            "Faults",
            PER_S,
            "Each has a line in the log.",
            {
                "failed batches {{model}}": rate("attenuator_batch_failures_total", "model"),
                "restarted lanes {{lane}}": rate("attenuator_lane_restarts_total", "lane", HERE),
                "sessions made again {{model}}": rate("attenuator_session_restarts_total", "model"),
                "cancelled, {{reason}}": rate("attenuator_cancelled_requests_total", "reason"),
            },
        ),
        Plot(
            "Models",
            NUMBER,
            "Instances that have a revision loaded: two revisions at a time while a bundle is replaced.",
            {
                "{{model}} {{revision}} {{device}} {{state}}": total(
                    "attenuator_models", "model, revision, device, state", MODEL
                )
            },
        ),
        Plot(
            "Resident memory",
            BYTES,
            "By instance.",
            {"{{instance}}": f"process_resident_memory_bytes{HERE} and on (instance) attenuator_build_info"},
        ),
        Plot(
            "Cores used",
            NUMBER,
            "By instance.",
            {
                "{{instance}}": f"rate(process_cpu_seconds_total{HERE}[$__rate_interval]) "
                "and on (instance) attenuator_build_info"
            },
        ),
        Plot(
            "Connections, of those that may be open",
            SHARE,
            "Near 1 the longest idle ones are closed.",
            {"{{instance}}": f"attenuator_connections{HERE} / attenuator_connection_limit{HERE}"},
        ),
    ],
}


def panel(plot: Plot, width: int) -> stat.Panel | timeseries.Panel:
    """A panel in Grafana's form."""
    one: stat.Panel | timeseries.Panel
    if plot.now:
        one = stat.Panel().height(HEIGHT // 2)
    else:
        table = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        one = timeseries.Panel().height(HEIGHT).fill_opacity(8).line_width(1)
        one = one.legend(table.show_legend(True)).tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    one = one.title(plot.title).description(plot.doc).unit(plot.unit).datasource(SOURCE).span(width).min(0)
    for letter, (legend, expression) in zip("ABCDEFGH", plot.queries.items(), strict=False):
        query = prometheus.Dataquery().expr(expression).legend_format(legend or "__auto").ref_id(letter)
        one = one.with_target(query.instant() if plot.now else query)
    return one


def choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A label's values to choose among, all of them at first."""
    every = VariableOption(text=["All"], value=["$__all"], selected=True)
    one = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query).multi(True).include_all(True)
    return one.current(every).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)


def content() -> str:
    """The dashboard as JSON."""
    board = (
        dashboard.Dashboard("Attenuator")
        .uid("attenuator")
        .description("Load, latency by knob range, agreement with the exact value and brownouts of Attenuator.")
        .tags(["attenuator"])
        .refresh("10s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(choice("instance", "Instance", "label_values(attenuator_build_info, instance)"))
        .with_variable(choice("model", "Model", "label_values(attenuator_models, model)"))
    )
    for title, plots in ROWS.items():
        board = board.with_row(dashboard.Row(title))
        width = COLUMNS // len(plots) if plots[0].now else COLUMNS // (2 if len(plots) in (2, 4) else 3)
        for plot in plots:
            board = board.with_panel(panel(plot, width))
    written = json.loads(JSONEncoder().encode(board.build()))
    for variable in written["templating"]["list"]:
        for name in OF_INTERVALS & variable.keys():
            del variable[name]
    return in_lines(json.loads(json.dumps(written, sort_keys=True)))


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the file is not current")
    arguments = parser.parse_args()
    if not arguments.check:
        FILE.write_text(content(), encoding="utf-8")
    elif not FILE.is_file() or FILE.read_text(encoding="utf-8") != content():
        print(f"{FILE.name} is not current; run `make gen`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
