"""The bundled models on a GPU: they answer as on the CPU, and a server runs them there."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from service import Started

from attenuator.clients import Client
from attenuator.errors import DeviceUnavailable, EngineError
from attenuator.runtime import CPU, Cancellation, Device, Model, Row, choose, load

pytestmark = pytest.mark.cuda

GPU = Device("cuda")
DEMO = Path(__file__).resolve().parent.parent.parent / "examples" / "bundles"
# Not all of them travel to a machine without a network.
NAMES = [name for name in ("reviews", "reviews-mca", "contracts") if (DEMO / name).is_dir()]
TEXT = (
    "a film so good that it is bad again but the plot and the actors were not what this agreement between the parties "
    "calls a masterpiece and either of them may terminate it at any time"
)
LENGTHS = (1, 2, 7, 30, 64, 200, 400)
# Where a value is sampled: enough for the mean to be told from another, little enough for long spreads.
KNOBS: dict[str, dict[str, Any]] = {"num_hashes": {"num_hashes": 16}, "alpha": {"alpha": 0.5}}
SEEDS = 48


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest) -> tuple[Model, Model]:
    """One bundle on the CPU and on the GPU."""
    return load(DEMO / request.param, device=CPU), load(DEMO / request.param, device=GPU)


def texts() -> list[str]:
    draw = random.Random(8)
    return [" ".join(draw.choices(TEXT.split(), k=length)) for length in LENGTHS]


def logits(model: Model, knobs: dict[str, Any], seed: int = 0) -> npt.NDArray[np.float64]:
    """`[texts, labels]`, of one packed batch."""
    encoded = [model.encode(text, truncate=True) for text in texts()]
    rows = [Row(item.token_ids, item.type_ids, knobs, seed) for item in encoded]
    return np.stack([result.logits for result in model.run(rows)]).astype(np.float64)


def test_exact_value_agrees_with_the_cpu(pair: tuple[Model, Model]) -> None:
    here, there = (logits(model, model.knobs.exact()) for model in pair)
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-3 * max(1.0, float(np.abs(here).max())))


def test_sampled_values_agree_in_distribution(pair: tuple[Model, Model]) -> None:
    """Not draw by draw: a query that moves by rounding may fall into another bucket."""
    knobs = pair[0].knobs.exact() | KNOBS[pair[0].knobs.names[-1]]
    here, there = (np.stack([logits(model, knobs, seed) for seed in range(SEEDS)]) for model in pair)
    scale = max(1.0, float(np.abs(here).max()))
    spread_here, spread_there = here.std(axis=0, ddof=1), there.std(axis=0, ddof=1)
    # Six standard errors of the difference of two means: missed once in 10^8 logits, of which there are hundreds.
    allowed = 6 * np.sqrt((spread_here**2 + spread_there**2) / SEEDS) + 1e-3 * scale
    assert (np.abs(there.mean(axis=0) - here.mean(axis=0)) <= allowed).all()
    visible = np.minimum(spread_here, spread_there) > 1e-2 * scale
    ratio = spread_there[visible] / spread_here[visible]
    assert ((ratio > 0.4) & (ratio < 2.5)).all()
    labels_here, labels_there = here.argmax(axis=-1), there.argmax(axis=-1)
    assert (labels_here == labels_there).mean() > 0.9


def test_same_batch_gets_the_same_bits_again(pair: tuple[Model, Model]) -> None:
    _, model = pair
    knobs = model.knobs.exact() | KNOBS[model.knobs.names[-1]]
    first = logits(model, knobs, seed=5)
    assert all(np.array_equal(first, logits(model, knobs, seed=5)) for _ in range(3))


def test_threads_share_one_model(pair: tuple[Model, Model]) -> None:
    _, model = pair
    knobs = model.knobs.exact()
    alone = logits(model, knobs)
    with ThreadPoolExecutor(4) as pool:
        for concurrent in pool.map(lambda _: logits(model, knobs), range(12)):
            np.testing.assert_array_equal(concurrent, alone)


def test_bad_row_fails_alone_and_the_next_runs(pair: tuple[Model, Model]) -> None:
    _, model = pair
    name = model.knobs.names[0]
    ids = np.array([1, 2, 3])
    with pytest.raises(EngineError) as caught:
        model.run([Row(ids, ids * 0, model.knobs.exact() | {name: 900})])
    assert f"{name}[0] is " in str(caught.value.detail)
    assert np.isfinite(logits(model, model.knobs.exact())).all()


def test_cancelled_run_ends(pair: tuple[Model, Model]) -> None:
    _, model = pair
    cancellation = Cancellation()
    cancellation.cancel()
    ids = np.array([1, 2, 3])
    with pytest.raises(EngineError) as caught:
        model.run([Row(ids, ids * 0, model.knobs.exact())], cancellation)
    assert "terminate" in str(caught.value.detail)


def test_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(DeviceUnavailable, match="CUDA device 99 cannot be used: "):
        choose("cuda", 99)


@pytest.fixture(scope="module", params=["cuda", "auto"])
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a server of the demo bundles on the GPU."""
    service = Started([DEMO / name for name in NAMES], "--device", request.param)
    assert "running on cuda:0: " in service.log()
    yield f"http://{service.host}:{service.port}"
    assert service.stop() == 0


def test_mixed_knobs_are_served_from_the_gpu(served: str) -> None:
    praise = "A masterpiece. Moving, funny, beautifully acted: the best film in years, I loved every minute."
    blame = "Dreadful. Boring plot, terrible acting, a complete waste of time; the worst movie of the year, avoid it."
    settings: list[tuple[str, dict[str, Any]]] = [
        ("reviews", {"num_hashes": 32}),
        ("reviews", {"num_hashes": 0}),
        ("reviews", {"num_hashes": 200}),
        ("reviews-mca", {"alpha": 0.0}),
        ("reviews-mca", {"alpha": 0.3}),
        ("contracts", {"num_hashes": 16}),
    ]
    with Client(served) as client, ThreadPoolExecutor(8) as pool:
        assert {info.device for info in client.models()} == {"cuda:0"}
        requests = [(model, knobs) for _ in range(8) for model, knobs in settings if model in NAMES]
        answers = pool.map(lambda one: client.classify([praise, blame], model=one[0], **one[1]), requests)
        for (model, knobs), answer in zip(requests, answers, strict=True):
            assert answer.device == "cuda:0"
            if model != "contracts":  # of another subject
                assert [prediction.label for prediction in answer.predictions] == ["positive", "negative"], knobs
