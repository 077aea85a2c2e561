"""The report of `attenuator inspect` as data: one object that `--json` writes and `show` prints."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from attenuator.bundle import MANIFEST, BundleKnob, Manifest
from attenuator.calibration import Calibration, read_calibration
from attenuator.calibration.schema import shown
from attenuator.commands.calibrated import measured_gains
from attenuator.commands.capacity import Capacity
from attenuator.commands.cost import Setting, TimeModel
from attenuator.ops import OPERATORS
from attenuator.ops.cost import RATES_MACHINE, LengthFacts, Outlook
from attenuator.ops.spec import Operator
from attenuator.runtime.work import COSTS, Work

SHORTEST_LENGTH, LENGTHS_SHOWN = 32, 8
# As multiples of the knob's default, or, where the highest value is the exact one, of that.
VALUES_SHOWN, SHARES_SHOWN = (0.25, 0.5, 1.0, 2.0), (0.1, 0.25, 0.5, 0.75)

ByKnob = dict[str, dict[float, float]]  # knob name, then its value


class KnobRow(BaseModel):
    """What the time model says about one knob at one length, all other knobs at their defaults.

    Attributes:
        layer_share: share of a full layer's multiply-adds that it can spare, or None where the model has no such layer.
        limit: speed-up of the whole model if all that it can spare cost nothing.
        speedups: by its value, speed-up of the whole model over the knob's exact value (over exact softmax attention,
            where its operator replaces that); empty where that depends on the text.
    """

    layer_share: float | None
    limit: float
    speedups: dict[float, float] = {}


class Row(BaseModel):
    """What the time model says about one length.

    Attributes:
        tokens: the length.
        attention_share: share of the exact model's time that attention takes.
        free_attention: speed-up of the whole model if attention cost nothing.
        knobs: by knob name.
    """

    tokens: int
    attention_share: float
    free_attention: float
    knobs: dict[str, KnobRow] = {}


class Measured(BaseModel):
    """What was timed at one length, one sequence at a time.

    Attributes:
        tokens: the length.
        exact_ms: the whole model with exact softmax attention over every token.
        base_ms: by knob, the whole model with all other knobs at their defaults, and this one at its exact value or,
            where its operator replaces exact softmax attention, with that.
        own_ms: a bundle without knobs whose attention is another one; else None.
        knob_ms: the whole model by knob and its value, all other knobs at their defaults.
        outputs: by further output of the graph, its value by knob and the knob's value.
        noisy: whether the machine did so much else that times say little.
    """

    tokens: int
    exact_ms: float
    noisy: bool = False
    base_ms: dict[str, float] = {}
    own_ms: float | None = None
    knob_ms: ByKnob = {}
    outputs: dict[str, ByKnob] = {}

    def base_of(self, knob: str) -> float:
        """What the times over a knob are compared with; with one knob, exact softmax attention."""
        return self.base_ms.get(knob, self.exact_ms)


class Report(BaseModel):
    """Everything about a bundle.

    Attributes:
        folder: where it lies.
        manifest: its manifest.
        files: bytes by file name.
        parameters: weights, by count.
        nodes: nodes of the domain by operator.
        uses: how the model uses a knob: text by heading, by knob name.
        modelled_on: the machine whose rates the time model uses.
        modelled: one row per length.
        parts: by knob name, what it can spare: `attention`, `projection` or `rows`.
        crossover: by knob and its value, tokens from which the model is faster than what `KnobRow.speedups` are over;
            nothing for a knob whose work depends on the text.
        measured: one row per length, where timing was asked for.
        calibration: what settings are worth; None where the bundle was not calibrated.
        capacity: what a rate of requests takes; None where none was asked for.
        verdict: what follows, in sentences: from the times of the calibration, or else from the time model.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    folder: Path
    manifest: Manifest
    files: dict[str, int]
    parameters: int
    nodes: dict[str, int]
    uses: dict[str, dict[str, str]] = {}
    modelled_on: str
    modelled: list[Row]
    parts: dict[str, str] = {}
    crossover: dict[str, dict[float, int | None]] = {}
    measured: list[Measured] = []
    calibration: Calibration | None = None
    capacity: Capacity | None = None
    verdict: list[str] = []


def lengths_up_to(longest: int) -> list[int]:
    """Doubling lengths that end at the longest."""
    lengths = [longest]
    while len(lengths) < LENGTHS_SHOWN and lengths[0] // 2 >= SHORTEST_LENGTH:
        lengths.insert(0, 1 << (lengths[0] - 1).bit_length() - 1)
    return lengths


def values_of(knob: BundleKnob) -> list[float]:
    """Values around the knob's default, or over its range, within its bounds, without the exact one."""
    if knob.exact == knob.high:
        return sorted({knob.default, *(max(knob.low, knob.high * share) for share in SHARES_SHOWN)} - {knob.exact})
    whole = knob.dtype == "int32"
    values = [round(knob.default * factor) if whole else knob.default * factor for factor in VALUES_SHOWN]
    return sorted({min(max(value, knob.low), knob.high) for value in values} - {knob.exact})


def owners(work: Work, knob: str) -> list[Operator]:
    """The operators of a model that have a knob; more than one where they share it."""
    keys = {node.operator for node in work.operators}
    return [each for each in OPERATORS if each.key in keys and knob in {row.name for row in each.knobs}]


class _Modelled:
    """The time model of one bundle, over lengths and knob values."""

    def __init__(self, manifest: Manifest, work: Work, lengths: Sequence[int]) -> None:
        self.manifest, self.work, self.lengths = manifest, work, lengths
        self.model = TimeModel(work)
        self.defaults = {knob.name: knob.default for knob in manifest.knobs}
        self.owners = {knob.name: owners(work, knob.name) for knob in manifest.knobs}

    def without(self, names: Collection[str], operators: Iterable[Operator]) -> Setting:
        """What some knobs are compared with: their operators exact, all other knobs at their defaults."""
        knobs = {name: value for name, value in self.defaults.items() if name not in names}
        return Setting(knobs, frozenset(operator.key for operator in operators))

    def values(self, knob: BundleKnob, values: Sequence[float]) -> list[float]:
        """The values whose speed-up can be modelled: all but the exact one; none if the work depends on the text."""
        if any(COSTS[operator.key].follows_text for operator in self.owners[knob.name]):
            return []
        return [value for value in values if value != knob.exact]

    def limit(self, name: str, tokens: int) -> float:
        """The most that a knob can win at a length, 1 where the model has no such operator."""
        than = self.without([name], self.owners[name])
        return max((self.model.free_part(each.key, tokens, than) for each in self.owners[name]), default=1.0)

    def row(self, tokens: int, values: Mapping[str, Sequence[float]]) -> Row:
        knobs = {}
        for name, operators in self.owners.items():
            if operators:
                than = self.without([name], operators)
                knobs[name] = KnobRow(
                    layer_share=self.model.layer_share(operators[0].key, tokens),
                    limit=self.limit(name, tokens),
                    speedups={
                        value: self.model.speedup(tokens, self.defaults | {name: value}, than) for value in values[name]
                    },
                )
        return Row(
            tokens=tokens,
            attention_share=self.model.attention_share(tokens),
            free_attention=self.model.free_attention(tokens),
            knobs=knobs,
        )

    def uses(self, name: str) -> dict[str, str]:
        """How the model uses a knob, as its operators put it."""
        nodes = self.work.operators
        parts = [COSTS[operator.key].summary(nodes) for operator in self.owners[name]]
        return {heading: text for part in parts for heading, text in part.items()}

    def outlook(self, operator: Operator) -> Outlook:
        knobs = [knob for knob in self.manifest.knobs if knob.name in {own.name for own in operator.knobs}]
        than = self.without([knob.name for knob in knobs], [operator])
        lengths = [
            LengthFacts(
                tokens=tokens,
                attention_share=self.model.attention_share(tokens),
                free_attention=self.model.free_attention(tokens),
                layer_share=self.model.layer_share(operator.key, tokens),
                free_part=self.model.free_part(operator.key, tokens, than),
                speedup=self.model.speedup(tokens, self.defaults, than),
            )
            for tokens in self.lengths
        ]
        crossover = self.model.crossover(self.defaults, than)
        return Outlook(operator, knobs, self.manifest.max_tokens, lengths, crossover)

    def verdict(self) -> list[str]:
        """Sentences about every operator with a knob in this bundle, or else about the one that computes attention.

        Those of the knob that can win most come first.
        """
        by_key = {operator.key: operator for name in self.by_limit() for operator in self.owners[name]}
        attention = [each for each in OPERATORS if each.key == self.manifest.attention.operator]
        operators = list(by_key.values()) or attention
        lines = [line for operator in operators for line in COSTS[operator.key].verdict(self.outlook(operator))]
        return [*self.together(), *lines]

    def by_limit(self) -> list[str]:
        """The knobs, the one that can win most first."""
        limits = {name: max(self.limit(name, tokens) for tokens in self.lengths) for name in self.defaults}
        return sorted(limits, key=lambda name: -limits[name])

    def together(self) -> list[str]:
        """What several knobs win together, and which of them most."""
        if len(self.defaults) < 2:
            return []
        setting = shown(self.defaults)
        first, last = self.lengths[0], self.lengths[-1]
        gains = [f"{self.model.speedup(tokens, self.defaults):.2f}x" for tokens in (first, last)]
        at_last = f", and {gains[1]} at {last}" if last > first else ""
        return [
            f"At the defaults ({setting}) this model is modelled {gains[0]} as fast at {first} tokens{at_last}, as "
            "with exact softmax attention over every token.",
            f"{self.by_limit()[0]} can win most: turn it first.",
        ]


def report_on(
    folder: Path, manifest: Manifest, work: Work, lengths: Sequence[int], values: Mapping[str, Sequence[float]]
) -> Report:
    """Reports without running anything.

    Args:
        folder: the bundle.
        manifest: its manifest.
        work: its model's work.
        lengths: to model, in tokens.
        values: by knob name, one knob at a time while the others have their defaults; the exact value is not modelled.

    Raises:
        BundleError: the calibration is damaged, or of another revision.
    """
    modelled = _Modelled(manifest, work, lengths)
    calibration = read_calibration(folder, manifest)
    shown = {knob.name: modelled.values(knob, values[knob.name]) for knob in manifest.knobs}
    return Report(
        folder=folder,
        manifest=manifest,
        files={name: (folder / name).stat().st_size for name in sorted([*manifest.files, MANIFEST])},
        parameters=work.parameters,
        nodes=work.nodes,
        uses={knob.name: modelled.uses(knob.name) for knob in manifest.knobs},
        modelled_on=RATES_MACHINE,
        modelled=[modelled.row(tokens, shown) for tokens in lengths],
        parts={name: COSTS[operators[0].key].part for name, operators in modelled.owners.items() if operators},
        crossover={
            name: {
                value: modelled.model.crossover(
                    modelled.defaults | {name: value}, modelled.without([name], modelled.owners[name])
                )
                for value in each
            }
            for name, each in shown.items()
            if each
        },
        calibration=calibration,
        verdict=(calibration and measured_gains(calibration)) or modelled.verdict(),
    )


def measured_verdict(report: Report, work: Work) -> list[str]:
    """Sentences that follow from the measured times alone."""
    sentences = []
    for name in report.measured[0].knob_ms if report.measured else ():
        gains = {
            value: {row.tokens: row.base_of(name) / row.knob_ms[name][value] for row in report.measured}
            for value in report.measured[0].knob_ms[name]
        }
        operators = owners(work, name)
        if operators and gains:
            limit = max(row.knobs[name].limit for row in report.modelled)
            sentences += COSTS[operators[0].key].measured_verdict(name, gains, limit)
    if noisy := [str(row.tokens) for row in report.measured if row.noisy]:
        sentences.append(
            f"The machine was busy: the times at {', '.join(noisy)} tokens differ by more than a quarter from turn to "
            "turn. Take them again when nothing else runs, or with a larger --budget-s."
        )
    return sentences
