"""What a knob does, in pictures for people who have not met one: from the bundles' calibrations and from the results.

Each picture says below what it was measured on, and at which commit.
"""

import re
import subprocess
import textwrap
from pathlib import Path

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attenuator.bundle import CALIBRATION, read_manifest
from attenuator.calibration import Calibration, Setting, read_calibration
from benchmarks.report.drawing import COLOURS, write
from benchmarks.report.results_files import RESULTS, Result, Row, load, load_all

ROOT = RESULTS.parent.parent
BUNDLES = ROOT / "examples/bundles"
TRADED = (("reviews", "reviews-mca"), ("contracts",))  # beside each other those of one scale
SIZE = (7.2, 4.4)
FOOTNOTE_CHARACTERS, FOOTNOTE_HEIGHT = 19, 0.035  # a line has so many an inch, and takes so much of the figure
SURE = "agreement-probability"
MERGED_FP32, KEPT = re.compile(r"keep [0-9.]+, merged"), 0.99


def footnote(figure: Figure, text: str) -> None:
    """Says below a picture what it was measured on."""
    lines = textwrap.wrap(text, round(FOOTNOTE_CHARACTERS * figure.get_figwidth()))
    figure.text(0.01, 0.005, "\n".join(lines), fontsize=7, color="0.35")
    figure.set_layout_engine("tight", rect=(0, FOOTNOTE_HEIGHT * len(lines), 1, 1))


def commit_of(path: Path) -> str:
    """The commit that wrote a file; empty outside of a clone."""
    command = ["git", "log", "-1", "--format=%h", "--abbrev=12", "--", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def measured_on(result: Result) -> str:
    """Machine and commit of a result file, in words."""
    return f"{result['machine']['processor']}, commit {result['commit'][:12]}"


def calibration_of(name: str) -> Calibration:
    """The calibration of a bundled model."""
    folder = BUNDLES / name
    calibration = read_calibration(folder, read_manifest(folder))
    assert calibration is not None
    return calibration


def calibrated_on(*names: str) -> str:
    """Machine and commits of calibrations, in words."""
    machines = {f"{row.device}, threads: {row.threads}" for name in names for row in calibration_of(name).latency}
    commits = ", ".join(f"{name} {commit_of(BUNDLES / name / CALIBRATION)}" for name in names)
    return f"{'; '.join(sorted(machines))}. Commits of calibration.json: {commits}"


def value_of(setting: Setting) -> str:
    """A setting's knob that moves, in short: its first one."""
    return f"{next(iter(setting.knobs.values())):g}"


def agreement_over_time(path: Path) -> None:
    """What a cheaper setting costs: agreement over time, for the longest texts of three models."""
    figure, panels = pyplot.subplots(1, len(TRADED), figsize=(9.6, 4.4))
    for axes, group in zip(panels, TRADED, strict=True):
        for colour, name in zip(COLOURS, group, strict=False):
            agreement_of(axes, name, colour)
        axes.set_xscale("log")
        ticks = [tick for tick in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1) if tick >= axes.get_xlim()[0]]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("time of a text, exact = 1")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="lower right")
    panels[0].set_ylabel("share of texts with the exact answer")
    figure.suptitle("Each point is a value of the knob: further left is cheaper", fontsize=10)
    names = [name for group in TRADED for name in group]
    footnote(figure, f"Modelled times, measured agreement with intervals of 97.5 %. {calibrated_on(*names)}")
    write(figure, path)


def agreement_of(axes: Axes, name: str, colour: str) -> None:
    """One model's frontier for its longest texts, a value of its first knob at each point."""
    calibration = calibration_of(name)
    last = len(calibration.buckets) - 1
    bucket, settings = calibration.buckets[last], calibration.frontier(last)
    times = [setting.time[last] for setting in settings]
    rows = [setting.agreement[last] for setting in settings]
    errors = [[row.value - row.low for row in rows], [row.high - row.value for row in rows]]
    knob = next(iter(settings[0].knobs))
    line = f"{name} ({knob}), {bucket.low} to {bucket.high} tokens, {bucket.texts} texts"
    values = [row.value for row in rows]
    axes.errorbar(times, values, errors, color=colour, marker="o", markersize=4, capsize=2, label=line)
    for setting, time, value in zip(settings[1:], times[1:], values[1:], strict=True):
        axes.annotate(value_of(setting), (time, value), textcoords="offset points", xytext=(4, -10), fontsize=7)


def time_over_length(path: Path) -> None:
    """Where a knob pays: measured time over length, exactly and at lower values, of two models."""
    names = ("reviews", "reviews-mca")
    figure, panels = pyplot.subplots(1, len(names), figsize=(9.6, 4.4), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        times_of(axes, calibration_of(name), name)
    panels[0].set_ylabel("milliseconds of one text")
    footnote(figure, calibrated_on(*names))
    write(figure, path)


def times_of(axes: Axes, calibration: Calibration, name: str) -> None:
    """One model's times over length, a line for each of its settings."""
    [latency, *_] = calibration.latency
    for colour, speed in zip(COLOURS, latency.speeds, strict=False):
        exact = speed.knobs == calibration.settings[0].knobs
        setting = ", ".join(f"{knob} {value:g}" for knob, value in speed.knobs.items())
        milliseconds = [1e3 * seconds for seconds in speed.seconds]
        line = {"color": "black", "linewidth": 2} if exact else {"color": colour}
        axes.plot(
            latency.tokens, milliseconds, marker="o", markersize=3, label=f"{setting}{' (exact)' * exact}", **line
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(latency.tokens, [str(length) for length in latency.tokens], fontsize=7)
    ticks = [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100, 200) if axes.get_ylim()[0] <= tick <= axes.get_ylim()[1]]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_title(name, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def ways_to_serve(row: Row) -> dict[str, str]:
    """Contenders by what the picture calls them: batches sorted by length, the least `keep` that keeps 99 %.

    OpenVINO's are there where it was installed.
    """
    values = {float(name.split()[1].rstrip(",")): name for name in row["labels"] if MERGED_FP32.fullmatch(name)}
    keep = min(value for value, name in values.items() if row["labels"][name]["agreement"]["share"] >= KEPT)
    ort_int8 = ("ONNX Runtime int8, sorted", "ONNX Runtime int8 static, sorted")
    ways = {
        "PyTorch": "PyTorch, eager",
        "ONNX Runtime int8": max(ort_int8, key=lambda name: row["over_ort"].get(name, {"median": 0})["median"]),
        "OpenVINO": "OpenVINO fp32, sorted",
        "OpenVINO int8": "OpenVINO int8, sorted",
        "Attenuator, exact": "exact",
        "Attenuator int8, exact": "int8, exact",
        f"Attenuator, keep {keep:g}": f"keep {keep:g}, merged",
        f"Attenuator int8, keep {keep:g}": f"int8, keep {keep:g}, merged",
    }
    return {short: name for short, name in ways.items() if name in row["contenders"]}


def served(result: Result, path: Path) -> None:
    """One trained classifier in every way that the field serves it: texts a second, and labels that stay."""
    row = result["texts"][0]
    contenders, labels = row["contenders"], row["labels"]
    shown = {
        short: (name, 1e6 * row["documents"] / contenders[name]["cpu_us"]["median"])
        for short, name in ways_to_serve(row).items()
    }
    figure, axes = pyplot.subplots(figsize=SIZE)
    colours = [COLOURS[2] if short.startswith("Attenuator") else COLOURS[7] for short in shown]
    bars = axes.barh(list(shown), [per_s for _, per_s in shown.values()], color=colours)
    for bar, (name, per_s) in zip(bars, shown.values(), strict=True):
        kept = labels[name]["agreement"]["share"] if name in labels else 1.0
        text = f"{per_s:,.0f}" + (f"   {kept:.1%} of answers unchanged" if kept < 1 else "")
        axes.annotate(text, (per_s, bar.get_y() + bar.get_height() / 2), textcoords="offset points", xytext=(4, -3),
                      fontsize=8)  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlim(0, 1.62 * max(per_s for _, per_s in shown.values()))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("texts a second on one core")
    axes.set_title(
        f"A news classifier of {row['layers']} layers, texts of {row['mean_tokens']:.0f} tokens", fontsize=11
    )
    compared = f"Answers compared with exact ones on {labels['exact']['agreement']['documents']:,} texts"
    footnote(figure, f"{compared}; texts sorted by length for ONNX Runtime and OpenVINO. {measured_on(result)}")
    write(figure, path)


def certainty(results: dict[str, Result], path: Path) -> None:
    """Whether answers are as sure as they are said to be: share that agreed over the probability that was stated."""
    figure, axes = pyplot.subplots(figsize=(5.2, 5))
    axes.plot([0, 1], [0, 1], ":", color="black", linewidth=0.8, label="as stated")
    for colour, (name, result) in zip(COLOURS, results.items(), strict=False):
        parts = result["parts"]
        said, agreed = [part["predicted"] for part in parts], [part["observed"] for part in parts]
        errors = [1.96 * part["sampling_error"] for part in parts]
        axes.errorbar(said, agreed, errors, color=colour, marker="o", markersize=4, linestyle="", label=name)
    axes.set_xlabel("agreement_probability that answers had, mean of each tenth")
    axes.set_ylabel("share of them that agreed with the exact answer")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    commits = {commit_of(RESULTS / f"{SURE}-{name}.json") for name in results}
    footnote(figure, f"Intervals of 95 %. Commits of the results: {', '.join(sorted(commits))}")
    write(figure, path)


def draw(folder: Path) -> None:
    """Draws all of them.

    Args:
        folder: for the SVG files.
    """
    agreement_over_time(folder / "knob_agreement.svg")
    time_over_length(folder / "knob_length.svg")
    whole = load("end_to_end")
    if whole:
        served(whole, folder / "knob_served.svg")
    certainty({result["bundle"]: result for result in load_all(SURE)}, folder / "knob_certainty.svg")
