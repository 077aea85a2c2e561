"""Where a command's model runs: a bundle in this process or a server, and the settings that say so."""

from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SecretStr

from attenuator.api import Priority
from attenuator.clients.calls import check_knobs
from attenuator.clients.client import Client
from attenuator.commandline import CommandSettings, fail, note
from attenuator.commands.knobflags import flag, is_bundle
from attenuator.commands.output import cut
from attenuator.errors import InvalidRequest, KnobOutOfRange
from attenuator.ops import KNOBS
from attenuator.ops.knobs import KnobValue

if TYPE_CHECKING:
    from attenuator.runtime import Device

FIRST_SHOWN = 60  # characters of a first word that is no bundle
SCHEMES = ("http://", "https://")


class PlaceSettings(CommandSettings):
    """Base of the settings of commands that answer with a bundle here or through a server."""

    bundle: Path | None = None
    """Folder of a bundle to run here, without a server; the first word, where neither this nor --url is set."""
    url: str | None = None
    """Address of a server to ask, such as http://127.0.0.1:8000."""
    model: str | None = None
    """Name of the server's model to ask; may be left out where the server has only one."""
    api_key: SecretStr | None = None
    """Key for a server that requires one; safer as the variable ATTENUATOR_API_KEY than on the command line."""
    timeout_ms: float | None = None
    """Deadline per request to a server, in milliseconds."""
    max_retries: Annotated[int, Field(ge=0)] = 3
    """How often to send a request again where the server is overloaded, not ready, or the connection fails."""
    priority: Priority | None = None
    """Class of the requests to a server: batch for work that can wait."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where --bundle runs; auto uses the CUDA device if it works, else the CPU, and says why."""
    device_id: int = Field(default=0, ge=0, le=255)
    """Which CUDA device, as the driver counts."""
    threads: int | None = None
    """Threads for --bundle; as many as there are cores by default."""


OF_SERVERS = ("model", "api_key", "timeout_ms", "max_retries", "priority", "concurrency")
PLACE_GROUPS = {"bundle": "one of", "model": "with --url", "device": "with --bundle"}


def take_place(
    command: str, settings: PlaceSettings, words: list[str], arguments: Sequence[str], *, takes_url: bool = False
) -> None:
    """Takes the first word for the bundle, or for the server where `takes_url`, unless a flag says where to ask.

    Ends the command with a usage error where nothing does, both flags do, or one of the `arguments` needs a server.
    """
    is_set, first = bool(settings.bundle or settings.url), words[0] if words else ""
    if (takes_url or not is_set) and is_bundle(first):
        settings.bundle = settings.bundle or Path(words.pop(0))
    elif takes_url and first.startswith(SCHEMES):
        settings.url = settings.url or words.pop(0)
    if (settings.bundle is None) == (settings.url is None):
        state = "both are set" if settings.url else "neither is set"
        if words and settings.url is None:
            state += f", and '{cut(words[0], FIRST_SHOWN)}' is not the folder of a bundle"
        fail(command, f"give either --bundle BUNDLE to run here or --url URL to ask a server: {state}")
    given = {word.partition("=")[0] for word in takewhile(lambda word: word != "--", arguments)}
    for name in map(flag, OF_SERVERS) if settings.bundle else ():  # variables may be there for other commands
        if name in given:
            fail(command, f"{name} needs a server (--url), but the bundle {settings.bundle} runs here")


def device_of(command: str, settings: PlaceSettings) -> "Device":
    """The device that the settings ask for; where `auto` ends on the CPU, standard error says why.

    Raises:
        DeviceUnavailable: the setting is `cuda`, which does not work.
    """
    from attenuator.runtime.device import chosen_for  # ONNX Runtime, which asking a server does not need

    return chosen_for(settings.device, settings.device_id, partial(note, command))


def client_of(settings: PlaceSettings, connections: int = 1) -> Client:
    """The server; so many connections at most."""
    key = settings.api_key.get_secret_value() if settings.api_key else None
    return Client(settings.url or "", api_key=key, max_retries=settings.max_retries, max_connections=connections)


def of_server(settings: PlaceSettings) -> dict[str, Any]:
    """What only a server is asked for."""
    return {"model": settings.model, "timeout_ms": settings.timeout_ms, "priority": settings.priority}


def knobs_of_settings(command: str, settings: CommandSettings) -> dict[str, KnobValue]:
    """The knobs whose flags are set, by name; ends the command with a usage error where one is wrong.

    Args:
        command: whose flags they are.
        settings: as `with_knobs` extends them, with one value a knob.
    """
    try:
        return check_knobs({name: getattr(settings, name) for name in KNOBS})
    except KnobOutOfRange as error:
        name = str(error.param)
        fail(command, str(error).replace(name, flag(name), 1))


def with_flag(error: InvalidRequest, settings: type[CommandSettings]) -> InvalidRequest:
    """The same error, with a field of the request named by its flag."""
    name = error.param or ""
    if name not in settings.model_fields or not str(error).startswith(f"{name} is "):
        return error
    return type(error)(f"{flag(name)}{str(error).removeprefix(name)}", param=name, allowed=error.allowed)
