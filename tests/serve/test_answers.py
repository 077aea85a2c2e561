"""What the service answers to good requests."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from service import Service

from attenuator.api import Classification
from attenuator.runtime import Model, Row, load
from attenuator.runtime.scores import SCORES
from attenuator.serve.api.answers import PIECE_VALUES, Answer, Make, OwnForm, Turns, Write, model_info

TEXT = "a very good film was not bad"
LONGER = " ".join(tiny.WORDS * 8)


def local(model: Model, text: str, pair: str | None = None, seed: int = 0, **knobs: Any) -> np.ndarray:
    """The model's logits without a server."""
    encoded = model.encode(text, pair)
    [result] = model.run([Row(encoded.token_ids, encoded.type_ids, model.knobs.check(knobs), seed)])
    return result.logits


def ok(service: Service, **body: Any) -> dict[str, Any]:
    response = service.classify(body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_answer_has_every_field_and_the_models_scores(service: Service, models: dict[str, Model]) -> None:
    answer = ok(service, model="yoso", inputs=TEXT, num_hashes=16, seed=3, top_k=2, return_logits=True)
    logits = local(models["yoso"], TEXT, seed=3, num_hashes=16)
    powers = np.exp(logits.astype(np.float64) - logits.max())
    scores = powers / powers.sum()
    labels = models["yoso"].manifest.labels
    order = np.argsort(-scores)
    assert answer["predictions"] == [
        {
            "label": labels[order[0]],
            "score": pytest.approx(scores[order[0]], rel=1e-12),
            "scores": [{"label": labels[i], "score": pytest.approx(scores[i], rel=1e-12)} for i in order[:2]],
            "logits": [float(value) for value in logits],
        }
    ]
    assert answer["revision"] == models["yoso"].manifest.revision
    assert {name: answer[name] for name in ("model", "device", "knobs", "requested", "chosen_by", "seed")} == {
        "model": "yoso",
        "device": "cpu",
        "knobs": {"num_hashes": 16},
        "requested": {"num_hashes": 16},
        "chosen_by": "caller",
        "seed": 3,
    }
    assert answer["tokens"] == [len(models["yoso"].encode(TEXT).token_ids)]
    assert set(answer["timing_ms"]) == {"tokenize", "queue", "compute", "total"}
    assert "value_flops" not in answer
    assert "labels" not in answer["predictions"][0]


def test_defaults_are_the_bundles_and_said_so(service: Service) -> None:
    answer = ok(service, model="yoso", inputs=TEXT)
    assert (answer["knobs"], answer["requested"], answer["chosen_by"]) == ({"num_hashes": 32}, {}, "default")
    assert isinstance(answer["knobs"]["num_hashes"], int)
    assert answer["seed"] == 0
    assert set(answer["predictions"][0]) == {"label", "score"}
    assert ok(service, model="softmax", inputs=TEXT)["knobs"] == {}


def test_mca_reports_the_share_of_multiply_adds(service: Service) -> None:
    exact = ok(service, model="mca", inputs=[TEXT, "good"], alpha=0)
    assert exact["value_flops"] == [1.0, 1.0]
    assert exact["knobs"] == {"alpha": 0.0}
    cheap = ok(service, model="mca", inputs=LONGER, alpha=1)
    assert 0 < cheap["value_flops"][0] < 1


def test_pairs_ids_and_batches(service: Service, models: dict[str, Model]) -> None:
    model = models["yoso"]
    ids = model.encode("good film").token_ids.tolist()
    items = ["good film", {"text": "good", "text_pair": "bad plot"}, {"token_ids": ids}, {"text": "film"}]
    answer = ok(service, model="yoso", inputs=items, return_logits=True)
    logits = [np.float32(one["logits"]) for one in answer["predictions"]]
    expected = [
        local(model, "good film"),
        local(model, "good", "bad plot"),
        local(model, "good film"),
        local(model, "film"),
    ]
    for one, other in zip(logits, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert answer["tokens"] == [4, 6, 4, 3]


def test_multi_label_gives_the_labels_above_their_threshold(service: Service, models: dict[str, Model]) -> None:
    answer = ok(service, model="multi", inputs=TEXT, top_k=33)
    logits = local(models["multi"], TEXT).astype(np.float64)
    scores = 1 / (1 + np.exp(-logits))
    [prediction] = answer["predictions"]
    assert prediction["labels"] == [f"clause {i}" for i in range(33) if scores[i] >= 0.5]
    assert prediction["label"] == f"clause {int(scores.argmax())}"
    assert [one["score"] for one in prediction["scores"]] == pytest.approx(sorted(scores, reverse=True), rel=1e-12)


def test_truncate_keeps_the_special_tokens(service: Service) -> None:
    answer = ok(service, model="yoso", inputs="good " * 9000, truncate=True, num_hashes=1)
    assert answer["tokens"] == [tiny.MAX_TOKENS]


def test_seeds_repeat_differ_and_are_drawn(service: Service) -> None:
    def logits(**body: Any) -> list[float]:
        answer = ok(service, model="yoso", inputs=LONGER, num_hashes=64, return_logits=True, **body)
        return list(answer["predictions"][0]["logits"])

    assert logits() == logits(seed=0)
    assert logits(seed=1) == logits(seed=1)
    assert len({tuple(logits(seed=seed)) for seed in range(8)}) == 8
    drawn = [ok(service, model="yoso", inputs=LONGER, num_hashes=64, seed=None, return_logits=True) for _ in range(4)]
    assert len({answer["seed"] for answer in drawn}) == 4
    assert logits(seed=drawn[0]["seed"]) == drawn[0]["predictions"][0]["logits"]


def test_server_default_seed_is_a_setting(start: Callable[..., Service]) -> None:
    one = start("--seed", "41")
    answer = ok(one, inputs=TEXT, num_hashes=2)
    assert answer["seed"] == 41
    assert answer["model"] == "yoso"  # may be left out where one model is served


def test_timing_headers(service: Service) -> None:
    response = service.classify({"model": "yoso", "inputs": TEXT})
    timing = response.json()["timing_ms"]
    assert all(0 <= part_ms <= timing["total"] for part_ms in timing.values())
    assert response.headers["Server-Timing"] == ", ".join(f"{name};dur={timing[name]}" for name in timing)
    assert response.headers["x-compute-characters"] == str(len(TEXT))
    assert response.headers["x-compute-tokens"] == str(response.json()["tokens"][0])
    for name in ("compute", "total", "tokenization", "queue", "inference"):
        assert response.headers[f"x-{name}-time"].isdigit()


def test_models_health_and_description(service: Service, models: dict[str, Model]) -> None:
    listed = service.client.get("/v1/models").json()["models"]
    assert {one["name"] for one in listed} == set(models)
    keys = {"name", "revision", "device", "task", "labels", "ranks", "max_tokens", "knobs", "calibration"}
    assert all(set(one) == keys for one in listed)
    assert {one["device"] for one in listed} == {"cpu"}
    [knob] = next(one for one in listed if one["name"] == "yoso")["knobs"]
    assert (knob["name"], knob["low"], knob["high"], knob["exact"]) == ("num_hashes", 0, 512, 0)
    assert service.client.get("/health/live").json() == {"status": "live"}
    assert service.client.get("/health/ready").json() == {"status": "ready"}


def test_a_calibration_is_listed_with_its_agreement_and_times() -> None:
    model = load(Path(__file__).resolve().parents[2] / "examples/bundles/reviews-mca", check=False)
    listed = model_info(model).calibration
    assert listed
    assert model.calibration
    for shown, setting in zip(listed.settings, model.calibration.settings, strict=True):
        assert shown.knobs == setting.knobs
        assert [each.value for each in shown.agreement] == [each.value for each in setting.agreement]
        assert shown.time == tuple(setting.time)
        assert len(shown.time) == len(listed.buckets)
    assert min(share for setting in listed.settings for share in setting.time) < 1


@pytest.mark.parametrize("size", [1, 256])
def test_single_and_batch_hit_the_same_limits(service: Service, size: int) -> None:
    assert len(ok(service, model="yoso", inputs=["good film"] * size, num_hashes=1)["predictions"]) == size


BOUNDS = [
    {"seed": 0},
    {"seed": 2**53 - 1},
    {"top_k": 1},
    {"top_k": 3},
    {"num_hashes": 0},
    {"num_hashes": 512},
    {"model": "mca", "alpha": 0},
    {"model": "mca", "alpha": 1},
    {"timeout_ms": 3_600_000},
    {"inputs": [{"token_ids": [5] * tiny.MAX_TOKENS}], "num_hashes": 1},
]


@pytest.mark.parametrize("fields", BOUNDS, ids=lambda fields: ", ".join(fields))
def test_the_bounds_of_a_field_are_allowed_themselves(service: Service, fields: dict[str, Any]) -> None:
    answer = ok(service, **{"model": "yoso", "inputs": TEXT, **fields})
    for name, value in fields.items():
        if name in answer["knobs"]:
            assert answer["knobs"][name] == value
        elif name in answer:
            assert answer[name] == value
        elif name == "top_k":
            assert len(answer["predictions"][0]["scores"]) == value


def test_floats_that_are_whole_count_as_whole_numbers(service: Service) -> None:
    body = {"model": "yoso", "inputs": [{"token_ids": [2, 5, 3]}], "num_hashes": 8, "seed": 3, "top_k": 2}
    floats = body | {"inputs": [{"token_ids": [2.0, 5.0, 3e0]}], "num_hashes": 8.0, "seed": 3.0, "top_k": 2.0}
    one, other = ok(service, **body), ok(service, **floats)
    assert one | {"timing_ms": 0} == other | {"timing_ms": 0}
    assert isinstance(other["knobs"]["num_hashes"], int)
    assert isinstance(other["seed"], int)


def test_scores_of_many_rows_have_the_bits_that_each_row_has_alone(models: dict[str, Model]) -> None:
    draw = np.random.default_rng(0)
    for task in SCORES:
        for labels in (1, 2, 3, 7, 8, 9, 33, 41, 130):
            logits = draw.normal(0, 6, (257, labels)).astype(np.float32)
            together, alone = SCORES[task](logits), [SCORES[task](row) for row in logits]
            assert together.tobytes() == np.array(alone).tobytes(), (task, labels)


def test_a_long_answer_is_written_piece_by_piece_and_others_come_between(models: dict[str, Model]) -> None:
    """256 inputs with all scores and logits held the event loop for 40 ms, whoever else waited."""
    model, form = models["mca"], OwnForm()
    form.request({"inputs": ["x"] * 256, "top_k": len(model.manifest.labels), "return_logits": True}, model)
    logits = np.random.default_rng(0).normal(size=(256, 3)).astype(np.float32)
    fields = {"model": "m", "revision": "r", "device": "cpu", "predictions": (), "knobs": {}, "requested": {}}
    fields |= {"chosen_by": "default", "seed": 0, "tokens": [1], "timing_ms": {}}
    answer = Answer(model, fields, model.scores(logits), logits, [{}] * 256)
    order: list[str] = []

    async def both() -> list[Any]:
        turns = Turns()

        def noting(name: str) -> Write:
            async def write(make: Make, inputs: int, values: int, between: bytes) -> bytes:
                def noted(span: slice) -> bytes:
                    assert (span.stop - span.start) * values <= PIECE_VALUES
                    order.append(name)
                    return make(span)

                return await turns.write(noted, inputs, values, between)

            return write

        short = turns.write(lambda span: order.append("short") or b"{}", 1, 1, b",")
        return await asyncio.gather(*(form.response(answer, {}, noting(name)) for name in ("a", "b")), short)

    first, second, _ = asyncio.run(both())
    assert first.body == second.body
    assert Classification.model_validate_json(first.body).model_dump_json(exclude_none=True).encode() == first.body
    assert order[:4] == ["short", "a", "b", "a"] or order[:4] == ["a", "short", "b", "a"]
    assert order.count("a") == order.count("b") > 1
