"""Several API keys: who may ask, how often, up to which knob values; a file that changes under the service."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from service import GOOD, Service

from attenuator.errors import AttenuatorError, KnobOutOfRange, RateLimited
from attenuator.runtime import Model
from attenuator.serve.access.keys import ApiKey, KeyRing, digest_of, parse_keys
from attenuator.serve.accuracy.plan import Limits, plan
from attenuator.serve.api.schema import parse_request

PLAIN, HASHED, SLOW = "plain-key-3141", "hashed-key-2718", "slow-key-1414"
KEYS: list[dict[str, Any]] = [
    {"name": "plain", "key": PLAIN, "ceilings": {"num_hashes": 16, "alpha": 0.3}},
    {"name": "hashed", "sha256": hashlib.sha256(HASHED.encode()).hexdigest()},
    {"name": "slow", "key": SLOW, "requests_per_s": 0.001, "burst": 2},
]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def one(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with a file of keys and a single one."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_text(json.dumps(KEYS))
    started = Service([bundles["yoso"]], "--threads", "1", "--api-keys", str(file), "--api-key", "the-single-one")
    yield started
    assert started.stop() == 0


def test_keys_of_a_file_and_the_single_one_are_taken(one: Service) -> None:
    for key, status in {PLAIN: 200, HASHED: 200, "the-single-one": 200, KEYS[1]["sha256"]: 401, "x": 401}.items():
        assert one.client.post("/v1/classify", json=GOOD, headers=bearer(key)).status_code == status
    assert one.client.get("/v1/models").status_code == 401
    log = one.wait_for_log("/v1/classify 200", "key=default")
    assert "key=plain" in log
    assert "key=hashed" in log
    metrics = one.client.get("/metrics").text
    assert 'attenuator_key_requests_total{key="plain",status="200"} 1.0' in metrics
    for secret in (PLAIN, HASHED, "the-single-one"):
        assert secret not in log + metrics


@pytest.mark.parametrize("path", ["/v1/classify", "/predict"])
def test_a_request_with_two_keys_is_refused_whichever_would_do(one: Service, path: str) -> None:
    for keys in ([PLAIN, HASHED], ["x", PLAIN], [PLAIN, "x"]):
        headers = [("Authorization", f"Bearer {key}") for key in keys]
        answer = one.client.post(path, json={"inputs": "a good film"}, headers=headers)
        assert answer.status_code == 400
        assert "the header authorization is there 2 times, must be there once" in answer.text


def test_a_key_over_its_rate_gets_429_and_others_do_not(one: Service) -> None:
    answers = [one.client.post("/v1/classify", json=GOOD, headers=bearer(SLOW)) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["error_type"] == "rate_limited"
    assert "'slow' may make 0.001 requests per second" in answers[2].json()["error"]
    assert 900 <= int(answers[2].headers["Retry-After"]) <= 1000
    assert one.client.get("/v1/models", headers=bearer(SLOW)).status_code == 429
    assert one.client.post("/v1/classify", json=GOOD, headers=bearer(HASHED)).status_code == 200


def test_a_ceiling_refuses_what_is_set_and_lowers_what_is_not(one: Service) -> None:
    def ask(key: str, **fields: Any) -> Any:
        body = {"model": "yoso", "inputs": "good film", **fields}
        return one.client.post("/v1/classify", json=body, headers=bearer(key))

    for value in (17, 0):
        refused = ask(PLAIN, num_hashes=value)
        assert refused.status_code == 422
        assert refused.json()["param"] == "num_hashes"
        assert refused.json()["error"] == (
            f"num_hashes is {value}, must be at most 16 and not 0 (its exact value) for the API key 'plain'"
        )
    lowered = ask(PLAIN).json()
    assert (lowered["knobs"], lowered["chosen_by"], lowered["requested"]) == ({"num_hashes": 16}, "default", {})
    assert ask(PLAIN, num_hashes=8).json()["knobs"] == {"num_hashes": 8}
    assert ask(HASHED, num_hashes=0).status_code == 200


def test_a_ceiling_of_a_knob_that_falls_is_its_lowest_value(models: dict[str, Model]) -> None:
    def knobs(ceiling: float, **fields: float) -> Any:
        asked = parse_request({"inputs": "good", **fields}, models["mca"]).asked
        return plan(models["mca"], asked, Limits({"alpha": ceiling}, "k")).knobs

    for alpha, allowed in ((0.0, False), (0.29, False), (0.3, True), (1.0, True)):
        if allowed:
            assert knobs(0.3, alpha=alpha) == {"alpha": alpha}
        else:
            with pytest.raises(KnobOutOfRange, match=r"must be at least 0\.3 for the API key 'k'"):
                knobs(0.3, alpha=alpha)
    assert knobs(0.3) == {"alpha": 0.3}
    assert knobs(0.0, alpha=0.0) == {"alpha": 0.0}


def test_a_changed_file_is_read_and_a_broken_one_is_not(start: Callable[..., Service], tmp_path: Path) -> None:
    """The path is a link that changes its target, as in a Kubernetes secret."""
    file, first, link = tmp_path / "second.json", tmp_path / "first.json", tmp_path / "keys.json"
    first.write_text(json.dumps(KEYS))
    link.symlink_to(first)
    one = start("--api-keys", str(link))

    def status(key: str) -> int:
        return one.client.get("/v1/models", headers=bearer(key)).status_code

    file.write_text(json.dumps([*KEYS[1:], {"name": "new", "key": "new-key"}]))
    (tmp_path / "next").symlink_to(file)
    (tmp_path / "next").replace(link)
    one.wait_for_log("read the API keys again: hashed, slow, new")
    assert (status(PLAIN), status("new-key")) == (401, 200)
    file.write_text('[{"name": "new", "key": "half-a-secr')
    one.wait_for_log("the API keys stay as they were", "keys.json")
    assert status("new-key") == 200
    file.unlink()
    log = one.wait_for_log("the API keys stay as they were", "cannot be read")
    assert status("new-key") == 200
    assert log.count("stay as they were") == 2
    assert "half-a-secr" not in log


def test_keys_in_the_environment(start: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENUATOR_API_KEYS", json.dumps(KEYS))
    one = start()
    assert one.client.get("/v1/models", headers=bearer(HASHED)).status_code == 200
    assert one.client.get("/v1/models").status_code == 401


def test_rate_is_kept_and_goes_on_where_the_file_is_read_again() -> None:
    [entry] = parse_keys('[{"name": "k", "key": "x", "requests_per_s": 10}]', "here")
    key = ApiKey(entry)
    assert key.requests is not None
    start_s = key.requests.counted_s
    for _ in range(10):
        key.take(start_s)
    with pytest.raises(RateLimited) as refused:
        key.take(start_s)
    assert refused.value.retry_after_s == pytest.approx(0.1)
    for index in range(20):
        key.take(start_s + 0.101 * (index + 1))
    with pytest.raises(RateLimited):
        key.take(start_s + 0.101 * 20)
    for _ in range(10):
        key.take(start_s + 100)
    with pytest.raises(RateLimited):
        key.take(start_s + 100)
    assert ApiKey(entry, key).requests == key.requests
    [faster] = parse_keys('[{"name": "k", "key": "x", "requests_per_s": 20}]', "here")
    assert ApiKey(faster, key).requests.spare == 20


def test_tokens_over_the_rate_are_waited_for() -> None:
    """What one request has is known once it was let through, so it is the next that waits."""
    [entry] = parse_keys('[{"name": "k", "key": "x", "tokens_per_s": 100, "burst_tokens": 300}]', "here")
    key = ApiKey(entry)
    assert key.tokens is not None
    start_s = key.tokens.counted_s
    for tokens in (200, 600):
        key.take(start_s)
        key.spend(tokens)
    with pytest.raises(RateLimited, match=r"'k' may use 100 tokens per second; try again in 6 s") as refused:
        key.take(start_s)
    assert refused.value.retry_after_s == pytest.approx(5.01)
    key.take(start_s + 5.02)
    assert ApiKey(entry, key).tokens == key.tokens


WRONG = {
    "no JSON": ("{", "invalid JSON"),
    "no list": ('{"name": "a"}', "valid array"),
    "empty": ("[]", "must have at least one"),
    "no key": ('[{"name": "a"}]', "[0]: must have one of key and sha256"),
    "both": (json.dumps([{"name": "a", "key": "s3cret", "sha256": "0" * 64}]), "must have one of key and sha256"),
    "a hash that is none": ('[{"name": "a", "sha256": "s3cret"}]', "[0].sha256"),
    "a name with spaces": ('[{"name": "a b", "key": "s3cret"}]', "[0].name"),
    "unknown field": ('[{"name": "a", "key": "s3cret", "rate": 1}]', "[0].rate"),
    "a key that no header can carry": (
        '[{"name": "a", "key": "s3cret-\\u00e9"}]',
        "[0]: a key must have one or more printable",
    ),
    "burst alone": ('[{"name": "a", "key": "s3cret", "burst": 1}]', "requires requests_per_s"),
    "no rate": ('[{"name": "a", "key": "s3cret", "requests_per_s": 0}]', "[0].requests_per_s"),
    "a rate without end": ('[{"name": "a", "key": "s3cret", "requests_per_s": 1e999}]', "[0].requests_per_s"),
    "a rate of never": ('[{"name": "a", "key": "s3cret", "requests_per_s": 5e-324}]', "[0].requests_per_s"),
    "a burst beyond floating point": (
        f'[{{"name": "a", "key": "s3cret", "requests_per_s": 1, "burst": 1{"0" * 400}}}]',
        "[0].burst",
    ),
    "no knob": ('[{"name": "a", "key": "s3cret", "ceilings": {"colour": 1}}]', "must be a knob: "),
    "no value of the knob": ('[{"name": "a", "key": "s3cret", "ceilings": {"alpha": 2}}]', "alpha is 2, must be"),
    "a field twice": ('[{"name": "a", "key": "s3cret", "key": "t"}]', "the field 'key' occurs more than once"),
    "same name": ('[{"name": "a", "key": "s3cret"}, {"name": "a", "key": "t"}]', "two keys of the same name"),
    "same key": ('[{"name": "a", "key": "s3cret"}, {"name": "b", "key": "s3cret"}]', "two keys of the same key"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_file_is_said_without_its_keys(case: tuple[str, str]) -> None:
    content, sentence = case
    with pytest.raises(AttenuatorError) as caught:
        parse_keys(content, "the file of API keys k.json")
    assert str(caught.value).startswith("the file of API keys k.json")
    assert sentence in str(caught.value).replace("Invalid", "invalid")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("other", ["setting api_key", "admin key"])
def test_a_file_may_have_neither_the_single_key_nor_the_admin_key(tmp_path: Path, other: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text('[{"name": "twin", "key": "s3cret"}]')
    same, another = SecretStr("s3cret"), SecretStr("another")
    single, admin = (same, another) if other == "setting api_key" else (another, same)
    with pytest.raises(AttenuatorError, match=f"the API key 'twin' must differ from the {other}"):
        KeyRing(single, SecretStr(str(file)), admin)


def test_a_file_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AttenuatorError, match="cannot be read: No such file"):
        KeyRing(None, SecretStr(str(tmp_path / "none.json")))


def test_a_pipe_or_a_device_is_no_file_of_keys(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(AttenuatorError, match="is not a regular file"):
            KeyRing(None, SecretStr(str(file)))


def test_keys_that_become_a_pipe_stay_as_they_were_and_the_service_stops(
    start: Callable[..., Service], tmp_path: Path
) -> None:
    """Opening a pipe that nobody writes to lasts for ever: no thread that did so was ever waited for in vain."""
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(KEYS))
    one = start("--api-keys", str(file))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").replace(file)
    one.wait_for_log("the API keys stay as they were", "is not a regular file")
    assert one.client.get("/v1/models", headers=bearer(PLAIN)).status_code == 200
    assert one.stop() == 0


def test_digest_takes_any_text() -> None:
    assert len({digest_of(text) for text in ("", "a", "é", "\ud800")}) == 4


@pytest.mark.parametrize(("rate", "burst"), [(0.2, 1), (1, 1), (1.5, 2), (2.0, 2)])
def test_without_a_burst_a_key_may_use_at_once_what_a_second_brings_rounded_up(rate: float, burst: int) -> None:
    """Not rounded down: a rate below one would never let a request through."""
    [entry] = parse_keys(json.dumps([{"name": "k", "key": "x", "requests_per_s": rate}]), "here")
    key, now_s = ApiKey(entry), time.monotonic()
    for _ in range(burst):
        key.take(now_s)
    with pytest.raises(RateLimited):
        key.take(now_s)
