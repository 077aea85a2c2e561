"""`attenuator serve` in a process forked from one that has imported it: most of a server's start is imports."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, TextIO

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["attenuator.serve.__main__", "attenuator.runtime.check"])


class Forked:
    """A process that looks like `subprocess.Popen` with a pipe for its standard error.

    Args:
        program: runs in it; what it returns is the exit code.
        arguments: of the program.
    """

    stderr: TextIO

    def __init__(self, program: Callable[..., int], *arguments: Any) -> None:
        reader, writer = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=_run, args=(writer, dict(os.environ), program, arguments), daemon=True)
        self._process.start()
        writer.close()
        self.pid: int = self._process.pid
        self.stderr = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
        reader.close()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(errors: Connection, environment: Mapping[str, str], program: Callable[..., int], arguments: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(errors.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    errors.close()
    sys.exit(program(*arguments))


def serve(arguments: Sequence[str]) -> int:
    """`attenuator serve`, whose bundles are checked in the process itself.

    This hides how the interpreter starts and ends: such a process leaves by `os._exit`. test_command.py, test_admin.py
    and test_stopping.py in tests/serve start the command as a user does, and tests/runtime has what the child process
    is for.
    """
    from checked import checked_here

    from attenuator import __main__
    from attenuator.runtime import model

    model.check_in_child = checked_here(model.check_in_child)
    return __main__.main(["serve", *arguments])
