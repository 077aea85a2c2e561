"""Checks of bundles in this process, in place of one of its own for each: its start takes longer than the check."""

import contextlib
import functools
import io
from collections.abc import Callable
from pathlib import Path

from attenuator.runtime.check import check_bundle
from attenuator.runtime.device import CPU, Device


def checked_here(check_in_child: Callable[..., None]) -> Callable[..., None]:
    """The check of a bundle in a process of its own, which on the CPU is made in this one."""

    @functools.wraps(check_in_child)
    def check(folder: Path, *, device: Device = CPU, copy_to: Path | None = None) -> None:
        if device.kind != "cpu":
            return check_in_child(folder, device=device, copy_to=copy_to)
        with contextlib.redirect_stdout(io.StringIO()):  # a line for each of its steps
            return check_bundle(folder, device, copy_to=copy_to)

    return check
