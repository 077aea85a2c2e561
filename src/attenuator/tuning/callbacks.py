"""Callbacks of a run for the library's loop: a deadline, an end on Ctrl-C, checkpoints by the clock, a progress bar."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["Deadline", "FirstStep", "Interruption", "Progress", "RegularSaves"]

# Between two states of the progress bar where no person looks on.
LOGGED_SECONDS = 30.0


def stop_and_save(control: TrainerControl) -> None:
    """Ends training after this step, with a checkpoint from which it can go on."""
    control.should_save = True
    control.should_training_stop = True


class RegularSaves(TrainerCallback):  # type: ignore[misc]  # untyped
    """Saves after a time without a checkpoint, so that a process that is killed loses little.

    Args:
        seconds: between checkpoints.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.last = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Asks for a checkpoint once it is time."""
        if time.monotonic() - self.last >= self.seconds:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Begins to wait again."""
        self.last = time.monotonic()


class FirstStep(TrainerCallback):  # type: ignore[misc]  # untyped
    """Notes that all that a run needs was read, and its first step came."""

    def __init__(self) -> None:
        self.came = False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Notes it."""
        self.came = True


class Deadline(TrainerCallback):  # type: ignore[misc]  # untyped
    """Ends training when the time is over.

    Args:
        at: on the monotonic clock, in seconds; None for no end.
    """

    def __init__(self, at: float | None) -> None:
        self.at = at
        self.passed = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Looks at the clock."""
        if self.at is not None and time.monotonic() >= self.at and state.global_step < state.max_steps:
            self.passed = True
            stop_and_save(control)


class Interruption(TrainerCallback):  # type: ignore[misc]  # untyped
    """Ends training after the step under way when SIGINT or SIGTERM comes; a second SIGINT ends the process."""

    def __init__(self) -> None:
        self.came = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ends it."""
        if self.came:
            stop_and_save(control)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within it signals are noted; elsewhere than in the main thread, which alone gets them, nothing happens."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            if self.came and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.came = True

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Progress(TrainerCallback):  # type: ignore[misc]  # untyped
    """A bar on stderr: steps, time left, the last loss and the last figure on the texts held out."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.figures: dict[str, str] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begins at the step that is gone on from."""
        interval = 1.0 if sys.stderr.isatty() else LOGGED_SECONDS
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit="step", mininterval=interval)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """One step further."""
        self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Shows loss and metrics."""
        shown = {
            "loss": "loss",
            "eval_loss": "held-out loss",
            "eval_accuracy": "held-out accuracy",
            "eval_agreement": "held-out agreement",
        }
        self.figures |= {title: f"{logs[name]:.4g}" for name, title in shown.items() if name in (logs or {})}
        self.bar.set_postfix(self.figures, refresh=sys.stderr.isatty())  # a log has it with the next step shown

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leaves the bar as it is."""
        self.close()

    def close(self) -> None:
        """Ends the bar's line, so that what is said next has one of its own."""
        if self.bar is not None:
            self.bar.close()
