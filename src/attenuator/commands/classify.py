"""The command `attenuator classify`."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from attenuator.clients.calls import UNSET, check_knobs
from attenuator.clients.client import Client
from attenuator.clients.progress import progress_bar
from attenuator.commandline import CommandSettings, Positionals, fail, parse
from attenuator.commands.backends import Backend, BundleBackend, ClassifyOptions, ServerBackend
from attenuator.commands.knobflags import describe_flag, examples, flag, with_knobs
from attenuator.commands.output import output_for
from attenuator.errors import InvalidRequest, KnobOutOfRange
from attenuator.ops import KNOBS
from attenuator.texts import STDIN, Item, items

if TYPE_CHECKING:
    from attenuator.runtime import Device

COMMAND = "classify"
POSITIONALS = Positionals("TEXT", "*", "text to classify; without any, and without --file, standard input is read")
USAGE = "(--bundle BUNDLE | --url URL) [options] [TEXT ...]"
EXAMPLES = f"""  one answer without a server, at the bundle's defaults:
    attenuator classify --bundle examples/bundles/reviews "A quiet, moving film."
  at a value of the bundle's knob, and at its exact value:
{examples('    attenuator classify --bundle BUNDLE {flag} {default} "A quiet, moving film."')}
{examples('    attenuator classify --bundle BUNDLE {flag} {exact} "A quiet, moving film."')}
  the cheapest knobs that keep 99 % of a calibrated bundle's answers:
    attenuator classify --bundle examples/bundles/reviews --min-agreement 0.99 "A quiet, moving film."
  how sure is each answer? And with what is not sure enough answered again at surer knobs:
    attenuator classify --bundle examples/bundles/reviews --explain "A quiet, moving film."
    attenuator classify --bundle examples/bundles/reviews --escalate --min-agreement 0.99 "A quiet, moving film."
  ask a server; how much does the answer depend on the seed?
    attenuator classify --url http://127.0.0.1:8000 --model reviews --seed random "A quiet, moving film."
  a file with one text per line; written to a pipe, answers are tab-separated (label, score, best labels, logits, text):
    attenuator classify --bundle examples/bundles/sentiment --file reviews.txt --top-k 2 --logits | sort -k 2
  the same, one JSON object per answer:
    attenuator classify --bundle examples/bundles/sentiment --file reviews.txt --json > answers.jsonl
  pairs and token ids as JSON lines: {{"text": "..", "text_pair": ".."}} or {{"token_ids": [101, 7592, 102]}}, which
  may have token_type_ids
    producer | attenuator classify --url http://127.0.0.1:8000 --jsonl

exit codes: 0 all inputs are classified, 1 something failed, 2 usage error; an error is one sentence on stderr"""
BATCH_CHARACTERS = 400_000  # well under the server's limit on a body, whatever the script


class ClassifySettings(CommandSettings):
    """Classify texts with a bundle in this process (--bundle) or through a server (--url).

    A knob trades accuracy for time, anew with every call; the last flags below are the knobs.
    """

    model_config = SettingsConfigDict(cli_shortcuts={"json-lines": "json"})

    bundle: Path | None = None
    """Folder of a bundle to run here, without a server."""
    url: str | None = None
    """Address of a server to ask, such as http://127.0.0.1:8000."""
    model: str | None = None
    """Name of the server's model to ask; may be left out where the server has only one."""
    api_key: SecretStr | None = None
    """Key for a server that requires one; safer as the variable ATTENUATOR_API_KEY than on the command line."""
    timeout_ms: float | None = None
    """Deadline per request to a server, in milliseconds."""
    max_retries: int = 0
    """How often to send a request again that the server refuses because it is overloaded."""
    file: str | None = None
    """Read inputs from FILE, one text per line, or JSON lines where it ends in .jsonl; `-` is standard input."""
    jsonl: bool = False
    """Every input line is a JSON object with text, with text and text_pair, or with token_ids (and
    token_type_ids)."""
    min_agreement: Annotated[float, Field(gt=0, le=1)] | None = None
    """Goal in place of knobs, for calibrated models: the cheapest ones whose answers agree with the exact ones on at
    least this share of inputs; 1 is exact."""
    max_latency_ms: Annotated[float, Field(gt=0)] | None = None
    """Goal in place of knobs, with --url: the most accurate ones that are predicted to answer within this time, in
    milliseconds."""
    explain: bool = False
    """Say how sure each answer is: the standard error of its score, and the probability that it is the exact one."""
    escalate: bool = False
    """Run again, at surer knobs, what is the exact answer with less probability than --min-agreement; knobs beside it
    say where to begin."""
    seed: int | Literal["random"] | None = None
    """Seed of the randomised operators; `random` draws one. Default: the server's own, or 0 with --bundle."""
    top_k: int | None = None
    """Show the TOP_K labels with the highest scores."""
    truncate: bool = False
    """Cut inputs that are longer than the model takes, instead of refusing them."""
    logits: bool = False
    """Show the logits, in the order of the model's labels."""
    json_lines: bool = False
    """Write one JSON object per input."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where --bundle runs; auto uses the CUDA device if it works, else the CPU, and says why."""
    device_id: int = Field(default=0, ge=0, le=255)
    """Which CUDA device, as the driver counts."""
    threads: int | None = None
    """Threads for --bundle; as many as there are cores by default."""


SETTINGS = with_knobs(ClassifySettings, lambda knob: {"int32": int, "float": float}[knob.dtype], describe_flag)


def batches(source: Iterator[Item], max_items: int) -> Iterator[list[Item]]:
    """Cuts the inputs into requests of bounded size."""
    batch: list[Item] = []
    characters = 0
    for item in source:
        size = len(item.excerpt)
        if batch and (len(batch) == max_items or characters + size > BATCH_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(item)
        characters += size
    if batch:
        yield batch


def named(error: InvalidRequest, batch: Sequence[Item]) -> InvalidRequest:
    """The same error, with the input named by its line or argument rather than by its index in a request."""
    match = re.match(r"inputs\[(\d+)\]", error.param or "")
    if match is None or int(match[1]) >= len(batch):
        return error
    where = batch[int(match[1])].where
    sentence = re.sub(r"inputs\[\d+\](\.text\b)?", where, str(error), count=1)
    return type(error)(sentence.replace("set truncate", "give --truncate"), param=error.param, allowed=error.allowed)


def device_of(settings: ClassifySettings) -> "Device":
    """The device that the settings ask for; where `auto` ends on the CPU, standard error says why.

    Raises:
        DeviceUnavailable: the setting is `cuda`, which does not work.
    """
    from attenuator.runtime import choose  # ONNX Runtime, which asking a server does not need

    choice = choose(settings.device, settings.device_id)
    if settings.device == "auto" and choice.device.kind == "cpu":
        print(f"attenuator {COMMAND}: running on {choice.device}: {choice.reason}", file=sys.stderr)
    return choice.device


def backend_of(settings: ClassifySettings) -> Backend:
    """The backend that the settings ask for; an AttenuatorError where it cannot be had."""
    if settings.bundle is not None:
        return BundleBackend(settings.bundle, device=device_of(settings), threads=settings.threads)
    key = settings.api_key.get_secret_value() if settings.api_key else None
    client = Client(settings.url or "", api_key=key, max_retries=settings.max_retries)
    return ServerBackend(client, model=settings.model, timeout_ms=settings.timeout_ms)


def check_goals(settings: ClassifySettings, knobs: Mapping[str, object]) -> None:
    """Ends the command with a usage error where goals stand beside knobs, or one needs a server."""
    goals = {"--min-agreement": settings.min_agreement, "--max-latency-ms": settings.max_latency_ms}
    goal = next((name for name, value in goals.items() if value is not None), None)
    if settings.escalate and settings.min_agreement is None:
        fail(COMMAND, "--escalate needs --min-agreement, the probability to reach: give both")
    if settings.escalate and settings.max_latency_ms is not None:
        fail(COMMAND, "--max-latency-ms stands beside --escalate, which ends at a deadline: give --timeout-ms instead")
    if goal and knobs and not settings.escalate:
        fail(COMMAND, f"{goal} stands beside {flag(next(iter(knobs)))}, but a goal chooses every knob: give only one")
    if settings.max_latency_ms is not None and settings.bundle is not None:
        fail(COMMAND, "--max-latency-ms needs a server (--url): only that knows how long its queue is")


def main(arguments: Sequence[str]) -> int:
    """Classifies the texts that the arguments, a file or standard input hold.

    Args:
        arguments: what follows `attenuator classify`.

    Returns:
        0; a failure is raised, and `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the bundle, the server or an input is at fault.
        SystemExit: 2 after a usage error.
    """
    settings, texts = parse(SETTINGS, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    if (settings.bundle is None) == (settings.url is None):
        both = "both are" if settings.bundle is not None else "neither is"
        fail(COMMAND, f"give either --bundle BUNDLE to run here or --url URL to ask a server: {both} set")
    file = settings.file
    if not texts and file is None:
        if sys.stdin.isatty():
            fail(COMMAND, "there is no input: give a TEXT, give --file FILE, or pipe texts into the command")
        file = STDIN
    try:
        knobs = check_knobs({name: getattr(settings, name) for name in KNOBS})
    except KnobOutOfRange as error:
        name = str(error.param)
        fail(COMMAND, str(error).replace(name, flag(name), 1))
    check_goals(settings, knobs)
    seed = None if settings.seed == "random" else UNSET if settings.seed is None else settings.seed
    options = ClassifyOptions(
        knobs,
        settings.min_agreement,
        settings.max_latency_ms,
        seed,
        settings.top_k,
        settings.truncate,
        settings.logits,
        settings.explain,
        settings.escalate,
    )
    source = items(texts, [file] if file is not None else [], jsonl=settings.jsonl)
    # A file is read to the end before anything runs: a wrong line is reported at once, and the total is known.
    everything = list(source) if file != STDIN else None
    output = output_for(json_lines=settings.json_lines)
    with closing(backend_of(settings)) as backend, progress_bar() as progress:
        count = None if everything is None else len(everything)
        task = progress.add_task("classifying", total=count, visible=count is None or count > backend.max_items)
        for batch in batches(source if everything is None else iter(everything), backend.max_items):
            try:
                answer = backend.classify([item.content for item in batch], options)
            except InvalidRequest as error:
                raise named(error, batch) from error
            output.show(batch, answer)
            progress.advance(task, len(batch))
    output.close()
    return 0
