"""The command `attenuator serve`."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attenuator.commandline import fail, parse
from attenuator.errors import AttenuatorError
from attenuator.runtime.model import Model
from attenuator.runtime.snapshot import remove_copies
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.api.errors import protocol_error
from attenuator.serve.app import create_app, observe
from attenuator.serve.edge.arrivals import Connections, connection_limit, raise_descriptor_limit
from attenuator.serve.edge.server import SIGNALS, Server, address, end_in_time, fastest_loop, is_loopback, listen
from attenuator.serve.engine import Engine
from attenuator.serve.observe import logs
from attenuator.serve.observe.metrics import Gauges
from attenuator.serve.observe.tracing import open_traces
from attenuator.serve.settings import COMMAND, POSITIONALS, ServeSettings, read_floors

log = logging.getLogger("attenuator.serve")
start_log = logging.getLogger("attenuator.serve.start")
# While a thread writes the metrics or reads a large body, the event loop waits this long for Python's lock after each
# of its own system calls. With Python's 5 ms a short text is answered twice as slowly meanwhile; below this, changing
# between threads takes more than it saves.
SWITCH_INTERVAL_S = 0.0005
END_S = 8.0  # after the time limit of draining: last answers, closing and traces take up to 6 s of an ordered stop
USAGE = "[BUNDLE ...] [options]"
EXAMPLES = """  serve two models, then ask one of them:
    attenuator serve examples/bundles/reviews examples/bundles/contracts --port 8000
    curl -s http://127.0.0.1:8000/v1/classify -H 'Content-Type: application/json' \\
      -d '{"model": "reviews", "inputs": "A quiet, moving film."}'

exit codes: 0 after SIGTERM, SIGHUP or Ctrl-C, 1 something failed, 2 usage error"""


def warn_if_open(keys: KeyRing, bound: socket.socket) -> None:
    """Warns where other machines may reach a service that requires no key."""
    host, port = bound.getsockname()[:2]
    if not keys.required and not is_loopback(bound):
        log.warning(
            "no API key is set: everyone who can reach %s can use the service; set ATTENUATOR_API_KEY",
            address(host, port),
        )


def warn_of_idle_floors(floors: Iterable[str], models: Mapping[str, Model]) -> None:
    """Warns of knobs that brownouts may lower, but that no model has."""
    had = {name for model in models.values() for name in model.knobs.rows}
    for name in floors:
        if name not in had:
            has = ", ".join(sorted(had)) or "none"
            log.warning("--brownout-to names %s, a knob of no served model; their knobs: %s", name, has)


async def serve(settings: ServeSettings, folders: Sequence[Path], bound: socket.socket) -> None:
    """Serves until a signal; answers health routes from the start, requests once the bundles are loaded.

    Raises:
        AttenuatorError: a bundle cannot be served.
    """
    keys = KeyRing(settings.api_key, settings.api_keys, settings.admin_key)
    traces = open_traces(settings.otel)
    engine = Engine(settings)
    metrics = observe(engine, settings, traces)

    def refusal(status: int, sentence: str) -> bytes:
        kind, content = protocol_error(status, sentence)
        logs.not_valid("answered %d to what is not a valid request, error_type=%s", status, kind)
        metrics.refused(kind)
        return content

    connections = Connections(connection_limit(settings.max_connections, raise_descriptor_limit()), refusal)
    Gauges(metrics, lambda: {"connections": {(): connections.open}, "connection_limit": {(): connections.limit}})
    server = Server(create_app(engine, settings, keys, metrics), settings, connections, bound)
    running = asyncio.create_task(server.serve())
    warn_if_open(keys, bound)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    end_in_time(settings.drain_timeout_ms / 1000 + END_S)
    stop_requested = asyncio.create_task(stop.wait())
    started = asyncio.create_task(engine.start(folders))
    watched = asyncio.create_task(keys.watch())
    try:
        await asyncio.wait({stop_requested, started, running}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():  # the web server failed: nobody could ask
            running.result()
        if started.done():
            started.result()
            warn_of_idle_floors(read_floors(settings.brownout_to), engine.models)
            where = address(*bound.getsockname()[:2])
            key = "requests need an API key" if keys.required else "no API key is required"
            page = "" if settings.no_page else "; open it in a browser to turn the knob"
            start_log.info("ready on http://%s (%s), %s%s", where, ", ".join(engine.models), key, page)
            await asyncio.wait({stop_requested, running}, return_when=asyncio.FIRST_COMPLETED)
        await drain(engine, server, stop)
    finally:
        stop_requested.cancel()
        watched.cancel()
        started.cancel()
        await engine.stop()
        server.should_exit = True
        await running
        if traces is not None:
            await traces.stop()


async def drain(engine: Engine, server: Server, stop: asyncio.Event) -> None:
    """Waits for requests in progress until the time limit or a second signal; the others are answered with 503."""
    stop.clear()
    again = asyncio.create_task(stop.wait())
    drained = asyncio.create_task(engine.drain())
    await asyncio.wait({again, drained}, return_when=asyncio.FIRST_COMPLETED)
    for task in (again, drained):
        task.cancel()
    ended = await server.end_requests(at_once=engine.requests > 0)
    if ended:
        log.warning("stopped before %d requests were finished: they were answered with 503", ended)


def main(arguments: Sequence[str]) -> int:
    """Runs `attenuator serve`; gives 0 after a signal and a drained queue.

    Raises:
        AttenuatorError: a bundle cannot be served, or the address is taken.
    """
    settings, folders = parse(ServeSettings, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    if not folders or "" in folders:
        fail(COMMAND, "the following arguments are required: BUNDLE; `attenuator serve --help` explains")
    logs.set_up(settings.log_format, settings.log_level)
    bound = listen(settings.host, settings.port)
    with contextlib.closing(bound):
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        runner = asyncio.Runner(loop_factory=fastest_loop())
        try:
            runner.run(serve(settings, [Path(folder) for folder in folders], bound))
        except AttenuatorError:
            runner.close()
            raise
    # Python would wait for all threads: one in ONNX Runtime for minutes, one that reads from a dead mount for ever.
    remove_copies()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
