"""Commands run in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attenuator.__main__ import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str) -> Run:
    """Runs `attenuator WORDS`; exit code, standard output, standard error."""
    monkeypatch.setenv("ATTENUATOR_API_KEY", key)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return call
