"""The load test of servers beside each other: arrivals, what is counted, and a whole run of the service alone.

The peers are not installed where tests run; the text of their answers is what their releases send. No time is asserted.
"""

import asyncio
import json
from pathlib import Path

import checkpoints
from benchmarks.contenders import servers
from benchmarks.measure.processes import free_port
from benchmarks.report import server_tables
from benchmarks.service import server

from attenuator.load_generator import Client, open_loop, post


def test_latency_counts_from_the_time_at_which_a_request_was_to_leave() -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one request at a time, each after 50 ms, whatever connection it comes over."""
        async with turn:
            await reader.readuntil(b"}")
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            writer.close()

    async def measured() -> list[float]:
        listening = await asyncio.start_server(late, "127.0.0.1", 0)
        async with listening:
            client = Client(listening.sockets[0].getsockname()[1])
            exchanges = await open_loop(client, [post("/", {"input": "a"})], [0.0, 0.001, 0.002, 0.003], seed=0)
            return [each.latency_s for each in exchanges if each.status == 200]

    turn = asyncio.Lock()
    latencies = asyncio.run(measured())
    assert len(latencies) == 4
    assert max(latencies) > 0.19, "the last one waited for the three before it"


def test_a_server_that_is_gone_gives_requests_without_an_answer() -> None:
    exchanges = asyncio.run(open_loop(Client(free_port()), [post("/", {})], [0.0, 0.01], seed=0))
    assert [each.status for each in exchanges] == [0, 0]


def test_scores_are_read_from_every_servers_answer() -> None:
    scores = {"good": 0.25, "bad": 0.75}
    rows = [{"label": label, "score": score} for label, score in scores.items()]
    assert servers.own_scores({"predictions": [{"label": "bad", "score": 0.75, "scores": rows}]}) == scores
    assert servers.infinity_scores({"object": "classify", "data": [rows]}) == scores
    contender = servers.litserve(Path("python"), Path("folder"), ["a"])
    assert contender.scores({"scores": scores}) == scores


def test_texts_are_cut_to_what_every_server_takes() -> None:
    tokenizer = checkpoints.word_tokenizer()
    short = server.shortened(" ".join(checkpoints.TEXTS * 4), tokenizer, 20)
    assert 15 <= len(tokenizer.encode(short)) <= 20
    assert " ".join(checkpoints.TEXTS * 4).startswith(short)


def test_it_runs_and_is_reported(tmp_path: Path) -> None:
    folder, output = checkpoints.save(checkpoints.CHECKPOINTS["bert"], tmp_path / "model"), tmp_path / "result.json"
    rows = [json.dumps({"text": text}) for text in checkpoints.TEXTS * 2]
    (folder / "test.jsonl").write_text("\n".join(rows), encoding="utf-8")
    options = ["--seconds", "0.3", "--capacity-seconds", "0", "--rounds", "1", "--loads", "0.2", "--calibration", "0"]
    assert server.main([str(folder), *options, "--output", str(output)]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    exact, mixed, degradable = result["variants"]
    assert [row["variant"] for row in (exact, mixed, degradable)] == ["exact", "mixed knobs", "exact, with brownout"]
    assert exact["answered"] == exact["requests"] == mixed["requests"] == degradable["requests"] > 0
    assert exact["agreement"]["share"] == 1
    assert result["capacity"][0]["variants"][0]["largest_difference"] < 1e-4
    assert "attenuator, mixed knobs" in "\n".join(server_tables.parts(result))
