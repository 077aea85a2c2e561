"""The soak in seconds: mixed traffic, clients that leave, reloads; nothing is left afterwards. And what it notices."""

import json
from pathlib import Path

import pytest
import tiny
from benchmarks.measure.traffic import Ask, Traffic
from benchmarks.service import soak
from benchmarks.service.soak import Soak, judged

from attenuator.bundle import manifest_content, parse_manifest


def test_seconds_of_mixed_traffic_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "ALLOWANCE_MIB", 64)
    monkeypatch.setattr(soak, "SAMPLE_S", 0.1)
    bundles = [str(tiny.write(tmp_path / kind, kind)) for kind in ("yoso", "mca")]
    arguments = soak.parser().parse_args([*bundles, "--seconds", "2", "--reload-every", "0.5"])
    result = soak.soaked(arguments.bundles, arguments)
    assert result["wrong"] == {}
    assert {"knobs", "stalled header", "reload"} <= result["answers"].keys()
    assert result["descriptors"]["afterwards"] <= result["descriptors"]["before"] < result["descriptors"]["most"]


def test_every_kind_of_request_is_drawn(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "yoso", "yoso")
    manifest = parse_manifest(manifest_content(folder), folder)
    traffic = Traffic([manifest], [True], seed=0)
    kinds = {traffic.draw().kind for _ in range(1000)}
    assert kinds == {
        "knobs",
        "batch",
        "the same again",
        "floors",
        "other route",
        "deadline",
        "look",
        "mistake",
        "goal",
        "escalated",
        "explained",
    }


def prediction(label: str) -> bytes:
    return json.dumps({"predictions": [{"label": label}]}).encode()


def test_what_should_not_happen_is_noted() -> None:
    one = Soak(rss_mib=[100.0] * 8, descriptors=[9])
    good = Ask("knobs", b"", frozenset({200}))
    again = Ask("the same again", b"", frozenset({200}), fixed=3)
    one.note(good, 200, b"")
    for _ in range(2):
        one.note(again, 200, prediction("a"))
    assert judged(one, 1.0)["wrong"] == {}
    one.note(good, 500, b"it failed")
    one.note(again, 200, prediction("b"))
    one.rss_mib = [100.0] * 12 + [200.0] * 4
    wrong = judged(one, 1.0)["wrong"]
    assert set(wrong) == {
        "knobs: 500 it failed",
        "text 3 got another answer",
        "resident memory grew from 100 to 200 MiB",
    }
