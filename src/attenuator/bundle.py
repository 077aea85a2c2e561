"""The bundle: the folder that export writes and serve reads.

`bundle.json` is read here, checked here and nowhere else. Opening a bundle checks its format version, that no file name
leaves the folder, and the SHA-256 of every file; running it (operator versions, node count, probe) is `runtime`'s part.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from attenuator.errors import CONTROL, BundleError
from attenuator.json_lines import fields_once
from attenuator.precision import PrecisionName

FORMAT_VERSION = 1
MANIFEST = "bundle.json"
MODEL = "model.onnx"
MODEL_DATA = "model.onnx.data"
# The same graph with weights that were taught to bear a small knob; its data holds what they do not share.
TAUGHT = "taught.onnx"
TAUGHT_DATA = "taught.onnx.data"
WEIGHTS = (MODEL, MODEL_DATA, TAUGHT, TAUGHT_DATA)
TOKENIZER = "tokenizer.json"
PROBE = "probe.npz"
TAUGHT_PROBE = "taught.npz"
CALIBRATION = "calibration.json"
# What commands put beside these: the plot of a calibration, its journal while it runs, the report of a tuning.
PLOT, PARTIAL, REPORT = "calibration.svg", "calibration.partial.jsonl", "report.html"
TRAINED_POSITIONS = "trained"  # the positions of a model that reads what its checkpoint was trained to read
REQUIRED_FILES = (MODEL, TOKENIZER, PROBE)
MAX_MANIFEST_BYTES = 4 * 2**20
MAX_BYTES = 256 * 2**20  # of a file besides the weights, for which alone room is looked for before they are copied
BLOCK_BYTES = 2**20
MAX_LABEL_CHARACTERS = 1000  # every answer holds a label, and some hold all of them; of a knob's sentence as well
INT32_HIGH = 2**31 - 1

Task = Literal["single_label", "multi_label", "regression", "token_classification"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
NAME_ALLOWED = "1 to 128 letters, digits, '.', '_' and '-', the first a letter or a digit"
Name = Annotated[str, Field(pattern=NAME)]


class Record(BaseModel):
    """Base of the manifest's parts: unknown fields are refused, instances do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Attention(Record):
    """Which operator computes attention, in how many layers, with which attributes.

    Attributes:
        operator: key of the operator in `attenuator.ops`.
        layers: nodes of that operator in the graph, one a layer.
        attributes: attributes shared by all nodes of that operator.
        other_nodes: further nodes of the domain by key, such as the pooling node, exact attention in the local layers
            of a model whose global ones are approximated, or a second attention node for the row of a global token.
    """

    operator: str
    layers: int = Field(ge=1)
    attributes: dict[str, int | float | str]
    other_nodes: dict[str, int] = {}


class BundleKnob(Record):
    """A knob as this bundle offers it: an operator's `Knob` without its source; bounds may be narrower.

    Made from one by `BundleKnob.model_validate(knob, from_attributes=True)`. Its fields are listed here all the same,
    since a bundle of today must be readable when an operator's knob has other fields.
    """

    name: str
    dtype: Literal["int32", "float"]
    default: float
    low: float
    high: float
    exact: float
    accuracy: Literal["rises", "falls"]
    unit: str = Field(max_length=MAX_LABEL_CHARACTERS)
    doc: str = Field(max_length=MAX_LABEL_CHARACTERS)


class ChosenSelection(Record):
    """How the selection of tokens was chosen at export.

    Attributes:
        schedule: how it spreads over the layers.
        texts: how many texts chose it; 0 where none were given.
        share: the default of its knob.
        agreement: share of the texts whose answers at the bundle's defaults agree with the exact ones, with the ends
            of a 95 % interval; None without texts.
        cost: predicted multiply-adds of the texts at the defaults, as a share of the exact values'; None without texts.
        gain: how many times as fast the defaults are as with every token, by the clock, text by text on one thread of
            the machine that exported, with the ends of a 95 % interval; None where all tokens go on, without texts, and
            in bundles from before the field.
        merge: what the tokens that are left out become together, such as `mean`; None where they are dropped.
    """

    schedule: str
    texts: int = Field(ge=0)
    share: float
    agreement: float | None = None
    agreement_low: float | None = None
    agreement_high: float | None = None
    cost: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    merge: str | None = None


class Provenance(Record):
    """Where the weights come from; what a person needs before using them.

    Attributes:
        source: the checkpoint's name.
        data: what the model was trained on.
        licence: of the weights.
        activation: what the checkpoint asks its own library to apply to a score, such as `Sigmoid`; answers have the
            score before it. Empty where it asks for nothing.
        positions: `trained`, or how the table of positions was made longer than the checkpoint's.
        weights: SHA-256 of the checkpoint's weights as the exact model has them, in fp32: the same for its bundles of
            every precision. Empty in bundles from before the field.
        tools: versions of the packages that wrote the bundle.
        parity: differences to the trained model by name, as export measured them.
        selection: how the selection of tokens was chosen; None in a bundle without.
    """

    source: str
    data: str = ""
    licence: str = ""
    activation: str = ""
    positions: str = TRAINED_POSITIONS
    weights: Sha256 | Literal[""] = ""
    tools: dict[str, str] = {}
    parity: dict[str, float] = {}
    selection: ChosenSelection | None = None


class Taught(Record):
    """Which rows the taught weights answer.

    Attributes:
        knob: that they were taught to bear.
        below: rows whose knob is smaller run in `taught.onnx`; the exact value never does.
    """

    knob: str
    below: float = Field(gt=0, allow_inf_nan=False)


class Manifest(Record):
    """`bundle.json`.

    Attributes:
        name: what requests call the model.
        revision: SHA-256 over `files`, so that a revision names the exact content.
        task: `single_label` (softmax), `multi_label` (sigmoid), `regression` (one output, answered as it is) or
            `token_classification` (softmax, for each token).
        labels: in the order of the logits; `regression` has one, the name of its score.
        thresholds: multi-label only, one a label.
        max_tokens: longest input, special tokens included.
        position_offset: first position id (2 for RoBERTa).
        vocab_size: token ids are 0 to vocab_size - 1.
        type_vocab_size: rows of the model's token types, if the graph takes any; see `token_types`. Bundles from before
            the field have at least 2.
        truncation_side: where `truncate` cuts a long text.
        split_special_tokens: whether special tokens written in a text are split like any other word.
        attention: the operator and its attributes.
        knobs: what a request may set.
        inputs: graph inputs in order; outputs: graph outputs in order.
        precision: what the model computes in; a row of `attenuator.precision`.
        pooling: `first` or `mean`, or `none` where every token is classified.
        taught: which rows run in a second graph with taught weights; None in a bundle with one graph.
        files: SHA-256 by file name: all but bundle.json and calibration.json.
    """

    format_version: int
    name: Name
    revision: Sha256
    task: Task
    labels: list[str] = Field(min_length=1)
    thresholds: list[Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]] = []
    max_tokens: int = Field(ge=1, le=INT32_HIGH)
    position_offset: int = Field(ge=0, le=INT32_HIGH)
    vocab_size: int = Field(ge=1, le=INT32_HIGH)
    type_vocab_size: int = Field(default=2, ge=1, le=INT32_HIGH)
    truncation_side: Literal["left", "right"] = "right"
    split_special_tokens: bool = False
    attention: Attention
    knobs: list[BundleKnob] = []
    inputs: list[str]
    outputs: list[str]
    precision: PrecisionName = "fp32"
    pooling: Literal["first", "mean", "none"]
    taught: Taught | None = None
    provenance: Provenance
    files: dict[str, Sha256]

    @property
    def token_types(self) -> int:
        """Token types are 0 to this number - 1; 1 for a model without token types, whose tokens are all of type 0."""
        return self.type_vocab_size if "token_type_ids" in self.inputs else 1

    @cached_property
    def reads_tokens(self) -> bool:
        """Whether there are logits for each token, in place of each sequence."""
        return self.task == "token_classification"

    @property
    def ranks(self) -> bool:
        """Whether it may rank documents: a text has one output. Nothing says whether it was trained on pairs."""
        return len(self.labels) == 1 and not self.reads_tokens

    @property
    def rounded(self) -> bool:
        """Whether even its exact answers differ from the checkpoint's, which are those in fp32."""
        return self.precision != "fp32"

    @field_validator("files")
    @classmethod
    def stay_inside(cls, files: dict[str, str]) -> dict[str, str]:
        """Refuses names that leave the folder and demands the files every bundle has."""
        for name in files:
            if PurePosixPath(name).name != name or name in ("", "..") or "\\" in name or "\0" in name:
                raise ValueError(f"the file name is {name!r}, must be a name in the bundle's folder")
        if missing := [name for name in REQUIRED_FILES if name not in files]:
            raise ValueError(f"{missing[0]} is missing from the list")
        return files

    @model_validator(mode="after")
    def fits_together(self) -> "Manifest":
        """Checks what one field says about another."""
        for index, label in enumerate(self.labels):
            if not label.strip():
                raise ValueError(f"label {index} is empty, must have a visible character")
            if CONTROL.search(label):
                raise ValueError(f"label {index} is {ascii(label)[:80]}, must have no control character")
            if len(label) > MAX_LABEL_CHARACTERS:
                raise ValueError(f"label {index} has {len(label)} characters, must have at most {MAX_LABEL_CHARACTERS}")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels has a label twice, must be different labels")
        if self.task == "regression" and not self.ranks:
            raise ValueError(f"labels has {len(self.labels)} names, must have one: the task is regression")
        if self.task in ("regression", "token_classification") and self.thresholds:
            raise ValueError(f"thresholds is set, must be empty: the task is {self.task}")
        if (self.task == "token_classification") != (self.pooling == "none"):
            raise ValueError(f"pooling is {self.pooling!r}, which does not fit the task {self.task}")
        if self.task == "multi_label" and len(self.thresholds) != len(self.labels):
            raise ValueError(
                f"thresholds has {len(self.thresholds)} values, must have one for each of {len(self.labels)} labels"
            )
        if len({knob.name for knob in self.knobs}) != len(self.knobs):
            raise ValueError("knobs has a name twice, must be different names")
        self.fits_taught()
        if self.revision != revision(self.files):
            raise ValueError("revision is not the SHA-256 of the list of files")
        return self

    def fits_taught(self) -> None:
        """Checks that a second graph is there exactly where rows run in it, and that no exact answer does."""
        present = [name for name in (TAUGHT, TAUGHT_PROBE) if name in self.files]
        if self.taught is None:
            if present:
                raise ValueError(f"files has {present[0]}, but taught does not say which rows run in it")
            return
        if len(present) != 2:
            raise ValueError(f"taught is set, but files lacks {TAUGHT} or {TAUGHT_PROBE}")
        exact = next((knob.exact for knob in self.knobs if knob.name == self.taught.knob), None)
        if exact is None or self.taught.below > exact:
            raise ValueError(
                f"taught has {self.taught.knob!r} below {self.taught.below:g}, must be a knob of the "
                "bundle, and at most its exact value"
            )


def revision(files: dict[str, str]) -> str:
    """The SHA-256 that names a bundle's exact content, over sorted lines `<sha256>  <name>`, from that of each file."""
    lines = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def copied_sha256(path: Path, copy: Path) -> str:
    """SHA-256 of a file's content, which is read once, in blocks, and written to another file as it is hashed."""
    digest = hashlib.sha256()
    with path.open("rb") as stream, copy.open("xb") as target:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
            target.write(block)
    return digest.hexdigest()


def read_manifest(folder: Path, *, copy_to: Path | None = None) -> Manifest:
    """Reads and checks `bundle.json` and the hash of every file it lists.

    Args:
        folder: the bundle.
        copy_to: an empty folder that gets `bundle.json` and the listed files, exactly as they were read and hashed.

    Returns:
        The manifest; every listed file exists inside the folder with the listed content.

    Raises:
        BundleError: one sentence that names the file and what is wrong with it.
    """
    content = manifest_content(folder)
    manifest = parse_manifest(content, folder)
    if copy_to is not None:
        (copy_to / MANIFEST).write_bytes(content)
    for name, expected in manifest.files.items():
        file = folder / name
        if not file.is_file():
            raise BundleError(f"bundle {folder}: {name} is missing")
        if not file.resolve().is_relative_to(folder.resolve()):
            raise BundleError(f"bundle {folder}: {name} is a link that leaves the folder")
        try:
            size = file.stat().st_size
            if size > MAX_BYTES and name not in WEIGHTS:
                raise BundleError(f"bundle {folder}: {name} has {size} bytes, must have at most {MAX_BYTES}")
            actual = file_sha256(file) if copy_to is None else copied_sha256(file, copy_to / name)
        except OSError as error:
            raise BundleError(f"bundle {folder}: {name} cannot be read: {error.strerror}") from None
        if actual != expected:
            raise BundleError(f"bundle {folder}: {name} is damaged: its SHA-256 is not the one in {MANIFEST}")
    return manifest


def manifest_content(folder: Path) -> bytes:
    """The bytes of `bundle.json`.

    Raises:
        BundleError: it is missing, no plain file, too large or unreadable.
    """
    path = folder / MANIFEST
    try:
        if not folder.is_dir():
            raise BundleError(f"bundle {folder} is not a folder")
        if not path.exists():
            raise BundleError(f"bundle {folder}: {MANIFEST} is missing")
        if not path.is_file():  # a pipe or a device never ends
            raise BundleError(f"bundle {folder}: {MANIFEST} is not a file")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BundleError(f"bundle {folder}: {MANIFEST} is a link that leaves the folder")
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes, must have at most {MAX_MANIFEST_BYTES}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise BundleError(f"bundle {folder}: {MANIFEST} cannot be read: {error}") from None


def parse_manifest(content: bytes, folder: Path) -> Manifest:
    """Checks what `bundle.json` says.

    Args:
        content: of the file.
        folder: what error sentences call the bundle.

    Raises:
        BundleError: one sentence that names the field and what is wrong with it.
    """
    try:
        raw = json.loads(content, object_pairs_hook=fields_once)
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # written as an escape, it would fail the answer that shows it
        raise BundleError(f"bundle {folder}: {MANIFEST} has a text with half of a surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"bundle {folder}: {MANIFEST} cannot be read: {error}") from None
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version != FORMAT_VERSION:
        raise BundleError(
            f"bundle {folder}: {MANIFEST} has format_version {version!r}, this version of Attenuator reads "
            f"{FORMAT_VERSION}"
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "content"
        reason = first["msg"].removeprefix("Value error, ")
        raise BundleError(f"bundle {folder}: {MANIFEST}: {where}: {reason}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `bundle.json`, last of a bundle's files."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")
