"""The `attenuator` command: hands over to the part that owns the subcommand, imported only then."""

import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence

INTERRUPTED = 130
try:
    from attenuator import __version__
    from attenuator.errors import AttenuatorError, EngineError, closest
except KeyboardInterrupt:  # `main` is not there yet
    sys.exit(INTERRUPTED)

COMMANDS = {
    "train": (
        "attenuator.tuning.train.__main__",
        "train a classifier on your labelled texts (needs the extra 'train')",
    ),
    "tune": (
        "attenuator.tune.__main__",
        "make a bundle that is as fast as your texts allow at an agreement (extra 'export')",
    ),
    "export": ("attenuator.export.__main__", "turn a trained model into a bundle (needs the extra 'export')"),
    "adapt": ("attenuator.tuning.adapt.__main__", "teach a small keep, or a new attention (extra 'train')"),
    "compare": ("attenuator.compare.__main__", "which attention suits a checkpoint, on your texts (extra 'export')"),
    "calibrate": ("attenuator.commands.calibrate.__main__", "measure what a bundle's settings are worth on your texts"),
    "serve": ("attenuator.serve.__main__", "answer classification requests over HTTP"),
    "classify": ("attenuator.commands.classify", "classify texts with a bundle or through a server"),
    "rerank": ("attenuator.commands.rerank", "rank documents for a query, likewise"),
    "bench": ("attenuator.commands.bench.__main__", "measure a server under load, over rates and knob values"),
    "inspect": ("attenuator.commands.inspect", "show a bundle's labels and knobs, and what the knobs can win"),
    "completion": ("attenuator.commands.completion", "print what completes this command in bash, zsh or fish"),
}
# The extra that brings a package; what is not here comes with the package itself.
EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "onnx", "onnxscript", "safetensors"), "export"),
    **dict.fromkeys(("accelerate", "tqdm"), "train"),
    "onnxruntime": "cpu",
}


def usage() -> str:
    """The help text of the bare command."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: attenuator COMMAND [OPTIONS]\n\n"
        "Transformer text classifiers whose attention has an accuracy knob, set per request.\n\n"
        f"commands:\n{rows}\n\n"
        "A bundle is a folder with a model, its tokenizer and the bounds of its knobs.\n\n"
        "examples:\n"
        "  attenuator inspect examples/bundles/reviews\n"
        '  attenuator classify examples/bundles/reviews "A quiet, moving film."\n'
        "  attenuator serve examples/bundles/reviews --port 8000\n\n"
        "`attenuator COMMAND --help` explains a command. `attenuator --version` prints the version."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns the process's exit code.

    Args:
        arguments: what follows `attenuator`; those of the process by default.

    Returns:
        0 on success, 1 where the command failed (one sentence on stderr), 2 after a usage error, 130 after Ctrl-C.
    """
    if sys.stdout is None:  # closed by the shell, `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # an encoding may lack a text's letters
        sys.stdout.reconfigure(errors="backslashreplace")
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = run(argv, interruptible=arguments is None)
        sys.stdout.flush()
        return code
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer goes nowhere
        if error.errno == errno.EPIPE:
            return INTERRUPTED
        print(f"attenuator: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def run(argv: Sequence[str], interruptible: bool) -> int:
    """Runs one subcommand as `main` does, which also answers for a standard output that takes nothing.

    Args:
        argv: what follows `attenuator`.
        interruptible: whether Ctrl-C ends the process while the command is imported.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        print(f"attenuator {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        close = closest(argv[0], COMMANDS)
        hint = f"did you mean {close[0]}?" if close else f"must be one of: {', '.join(COMMANDS)}"
        print(f"attenuator: unknown command '{argv[0]}', {hint}", file=sys.stderr)
        return 2
    # Threads of PyTorch's that wait for one another sleep: where they spin, the default, a machine that does anything
    # else takes 20 times as long to train. OpenMP reads this once, when PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    before = signal.getsignal(signal.SIGINT)
    try:
        # An import that Ctrl-C breaks off fails with errors of half a module. Nothing is begun: the process just ends.
        if interruptible and before is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
        command = importlib.import_module(COMMANDS[argv[0]][0])
        if interruptible:
            signal.signal(signal.SIGINT, before)
        return int(command.main(argv[1:]) or 0)
    except AttenuatorError as error:
        detail = f": {error.detail}" if isinstance(error, EngineError) and error.detail else ""
        print(f"attenuator {argv[0]}: {error}{detail}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        root = (error.name or "").partition(".")[0]
        if root == "attenuator":
            raise
        extra = f"[{EXTRAS[root]}]" if root in EXTRAS else ""
        print(
            f"attenuator {argv[0]}: the Python package '{root}' is missing: in a checkout, `make setup` or "
            f"pip install '.{extra}'",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
