"""Servers as processes on cores of their own: started, waited for, stopped, and what CPU time they took."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

TICKS = os.sysconf("SC_CLK_TCK")
START_S, STOP_S, POLL_S = 60.0, 10.0, 0.1
LAST_CHARACTERS = 2000


def stat_fields(pid: int) -> list[str]:
    """Fields of `/proc/PID/stat` from the third on, which is the state."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """CPU time of a process, all threads."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS


def session_cpu_s(leader: int) -> float:
    """CPU time of the living processes of a session, that of its leader and of those that it started."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # processes end meanwhile, and not all entries are processes
            if int(stat_fields(int(entry.name))[3]) == leader:
                total += cpu_s(int(entry.name))
    return total


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Keeps this process on some cores meanwhile."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@contextlib.contextmanager
def serving(bundle: Path, flags: Sequence[str], log_level: str = "error") -> Iterator[tuple[int, int]]:
    """Runs `attenuator serve` on all cores of this process; gives its process id and port.

    Args:
        bundle: the first that it serves.
        flags: of the command, further bundles among them.
        log_level: `info` writes a line for each request.
    """
    port = free_port()
    command = [sys.executable, "-m", "attenuator", "serve", str(bundle), "--port", str(port)]
    command += ["--log-level", log_level, *flags]
    cores = sorted(os.sched_getaffinity(0))
    with running(command, f"http://127.0.0.1:{port}/health/ready", cores) as pid:
        yield pid, port


@contextlib.contextmanager
def running(
    command: Sequence[str], ready_url: str, cores: Sequence[int], environment: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Runs a server in a session of its own and stops it in the end, with all that it started.

    Args:
        command: which starts it.
        ready_url: answers 200 once it serves.
        cores: that it may use.
        environment: variables beside those of this process.

    Yields:
        Its process id, which is that of the session.

    Raises:
        SystemExit: it did not start; with the last lines that it wrote.
    """
    pinned = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
    with tempfile.TemporaryFile() as output:
        server = subprocess.Popen(
            pinned,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            if not wait_ready(server, ready_url):
                output.seek(max(0, output.seek(0, os.SEEK_END) - LAST_CHARACTERS))
                wrote = output.read().decode(errors="replace")
                raise SystemExit(f"benchmarks: the server did not start: `{shlex.join(command)}`\n{wrote}")
            yield server.pid
        finally:
            stop(server)


def wait_ready(server: subprocess.Popen[bytes], url: str) -> bool:
    """Asks until it is answered with 200; False where the server has ended or takes too long."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(URLError, OSError), urlopen(url, timeout=1) as answer:
            if answer.status == 200:
                return True
        time.sleep(POLL_S)
    return False


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ends a server and all processes of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_S)
