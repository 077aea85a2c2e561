"""Error texts: one line that a terminal and a log can take, whatever they quote."""

import pytest

from attenuator.errors import MAX_SENTENCE, AttenuatorError, BundleError, EngineError, InvalidRequest, printable


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain text", "plain text"),
        ("red \x1b[31mname\x1b[0m", "red [31mname[0m"),
        ("one\r\ntwo\tthree\u2028four", "one two three four"),
        ("bell\x07 delete\x7f c1\x9b2J", "bell delete c12J"),
        ("user\u202etxt.exe\u2066", "usertxt.exe"),
        ("half \ud800 of a pair", "half  of a pair"),
        ("\U0001f469\u200d\U0001f52c नमस्ते می\u200cخواهم", "\U0001f469\u200d\U0001f52c नमस्ते می\u200cخواهم"),
        ("", ""),
    ],
)
def test_control_characters_are_removed(text: str, line: str) -> None:
    assert printable(text) == line
    for error in (AttenuatorError(text), BundleError(text), InvalidRequest(text, param="text")):
        assert str(error) == line
    assert EngineError("failed", detail=text).detail == line


@pytest.mark.parametrize("text", ["x" * (MAX_SENTENCE + 1), "x" * 10**7, "\x00" * 10**7])
def test_long_texts_are_cut(text: str) -> None:
    assert len(printable(text)) <= MAX_SENTENCE
    assert printable(text).endswith("…")
    assert printable("x" * MAX_SENTENCE) == "x" * MAX_SENTENCE
