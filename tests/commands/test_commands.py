"""The commands `classify` and `inspect` on real bundles, in this process and through a real server."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from running import Run

import attenuator
from attenuator.bundle import read_manifest
from attenuator.clients import Client
from attenuator.runtime import Row, load

LONG = "good " * 8200
TEXTS = ["the quick brown fox", "a film so bad, that it is [good] again", "42 tokens and spaces"]


def records(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_classify_answers_what_the_runtime_answers(run: Run, bundles: dict[str, Path]) -> None:
    code, output, errors = run(
        "classify", "--bundle", bundles["yoso"], "--num-hashes", "16", "--logits", "--json", *TEXTS
    )
    assert (code, errors) == (0, "")
    model = load(bundles["yoso"], check=False)
    for text, record in zip(TEXTS, records(output), strict=True):
        encoded = model.encode(text)
        [alone] = model.run([Row(encoded.token_ids, encoded.type_ids, {"num_hashes": 16}, seed=0)])
        assert record["logits"] == [float(value) for value in alone.logits]
        assert record["label"] == model.manifest.labels[int(np.argmax(alone.logits))]
        assert record["knobs"] == {"num_hashes": 16}
        assert (record["chosen_by"], record["seed"], record["tokens"]) == ("caller", 0, len(encoded.token_ids))


def test_classify_through_a_server_and_without_one_agree_bit_for_bit(
    run: Run, bundles: dict[str, Path], url: str
) -> None:
    for model, knob in (("yoso", ["--num-hashes", "8"]), ("mca", ["--alpha", "0.5"]), ("multi", []), ("softmax", [])):
        arguments = [*knob, "--logits", "--top-k", "2", "--json", *TEXTS]
        code, here, errors = run("classify", "--bundle", bundles[model], *arguments)
        assert (code, errors) == (0, "")
        code, there, errors = run("classify", "--url", url, "--model", model, *arguments)
        assert (code, errors) == (0, "")
        assert records(here) == records(there)
        assert len(records(here)) == len(TEXTS)
        assert len(records(here)[0]["scores"]) == 2


def test_classify_chooses_among_labels_of_the_command_line(run: Run, tmp_path: Path) -> None:
    folder = tiny.write(tmp_path / "nli", "mca", labels=("entailment", "not_entailment"))
    arguments = ["--candidate-labels", "film, law", "--hypothesis-template", "was it {}", "--multi-label"]
    code, output, errors = run("classify", folder, *arguments, "--json", *TEXTS)
    assert (code, errors) == (0, "")
    model = attenuator.load(folder, check=False)
    fields = {"candidate_labels": ["film", "law"], "hypothesis_template": "was it {}", "multi_label": True}
    for record, prediction in zip(records(output), model.classify(TEXTS, **fields).predictions, strict=True):
        assert record["scores"] == [each.model_dump() for each in prediction.scores]
        assert (record["label"], record["labels"]) == (prediction.label, [*prediction.labels])
    code, _, errors = run("classify", folder, "--candidate-labels", "film,", *TEXTS)
    assert (code, "candidate_labels[1] is empty" in errors) == (1, True)


def test_classify_shows_tab_separated_lines_in_a_pipe(run: Run, bundles: dict[str, Path]) -> None:
    code, output, _ = run("classify", "--bundle", bundles["mca"], *TEXTS)
    assert code == 0
    rows = [line.split("\t") for line in output.splitlines()]
    assert [row[2] for row in rows] == TEXTS
    assert {row[0] for row in rows} <= set(read_manifest(bundles["mca"]).labels)
    assert all(0 < float(row[1]) <= 1 for row in rows)


def test_classify_shows_in_a_pipe_what_was_asked_for(run: Run, bundles: dict[str, Path]) -> None:
    arguments = ["classify", "--bundle", bundles["mca"], "--alpha", "0"]
    expected = records(run(*arguments, "--top-k", "2", "--logits", "--json", *TEXTS)[1])
    best = [" ".join(f"{each['label']} {each['score']:.3f}" for each in record["scores"]) for record in expected]
    logits = [" ".join(f"{value:.4f}" for value in record["logits"]) for record in expected]
    for flags, columns in (
        (["--top-k", "2"], [best]),
        (["--logits"], [logits]),
        (["--top-k", "2", "--logits"], [best, logits]),
    ):
        rows = [line.split("\t") for line in run(*arguments, *flags, *TEXTS)[1].splitlines()]
        assert [row[2:-1] for row in rows] == [list(cells) for cells in zip(*columns, strict=True)]
        assert [row[-1] for row in rows] == TEXTS


def test_classify_shows_a_table_on_a_terminal(
    run: Run, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    code, output, _ = run("classify", "--bundle", bundles["mca"], "--alpha", "0.3", "--top-k", "2", *TEXTS)
    assert code == 0
    output = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", output)
    lines = output.splitlines()
    assert lines[0].split()[:3] == ["label", "score", "best"]
    assert "value_flops" in lines[0]
    assert "[good]" in output
    assert "alpha 0.3 (chosen by caller), seed 0" in lines[-1]


def test_classify_reads_files_and_standard_input(
    run: Run, bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["classify", "--bundle", bundles["yoso"], "--json"]
    expected = [record["score"] for record in records(run(*arguments, *TEXTS)[1])]
    text, lines = tmp_path / "texts.txt", tmp_path / "texts.jsonl"
    text.write_text("\n".join([TEXTS[0], "", *TEXTS[1:]]))
    lines.write_text("\n".join(json.dumps({"text": value, "label": "x"}) for value in TEXTS))
    for path, numbers in ((text, (1, 3, 4)), (lines, (1, 2, 3))):
        from_file = records(run(*arguments, "--input", path)[1])
        assert [record["score"] for record in from_file] == expected
        assert [record["input"] for record in from_file] == [f"{path} line {number}" for number in numbers]
    with text.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert [record["score"] for record in records(run(*arguments)[1])] == expected


def test_classify_takes_more_inputs_than_a_request_may_hold(
    run: Run, bundles: dict[str, Path], tmp_path: Path, url: str
) -> None:
    path = tmp_path / "many.txt"
    path.write_text("\n".join(f"fox number {i}" for i in range(300)))
    code, there, _ = run("classify", "--url", url, "--model", "yoso", "--input", path, "--json")
    assert code == 0
    assert len(records(there)) == 300
    _, here, _ = run("classify", "--bundle", bundles["yoso"], "--input", path, "--json")
    assert records(here) == records(there)


def test_classify_draws_a_seed_when_asked(run: Run, bundles: dict[str, Path]) -> None:
    arguments = ["classify", "--bundle", bundles["yoso"], "--num-hashes", "8", "--json", TEXTS[1]]
    seeds = {records(run(*arguments, "--seed", "random")[1])[0]["seed"] for _ in range(3)}
    assert len(seeds) == 3
    drawn = records(run(*arguments, "--seed", "random")[1])[0]
    again = records(run(*arguments, "--seed", str(drawn["seed"]))[1])[0]
    assert drawn == again


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["x"], 2, "ask a server: neither is set, and 'x' is not the folder of a bundle"),
        ([], 2, "give either --bundle BUNDLE to run here or --url URL to ask a server: neither is set"),
        (["--bundle", "{yoso}", "--url", "http://127.0.0.1:1", "x"], 2, "give either --bundle BUNDLE"),
        (
            ["--bundle", "{yoso}", "--num-hashes", "513", "x"],
            2,
            "--num-hashes is 513, must be a whole number from 0 to 512",
        ),
        (["--bundle", "{yoso}", "--num-hashes", "1.5", "x"], 2, "--num-hashes (or ATTENUATOR_NUM_HASHES) is '1.5'"),
        (
            ["--bundle", "{yoso}", "--seed", "never", "x"],
            2,
            "--seed (or ATTENUATOR_SEED) is 'never', must be a whole number or 'random'",
        ),
        (["--bundle", "{yoso}", "--frobnicate", "x"], 2, "the flag --frobnicate is unknown"),
        (["{yoso}", "--priority", "batch", "x"], 2, "--priority needs a server (--url), but the bundle"),
        (["--bundle", "{yoso}", "--concurrency", "2", "x"], 2, "--concurrency needs a server (--url), but the bundle"),
        (["--bundle", "{yoso}", "--alpha", "0.5", "x"], 1, "has no knob alpha"),
        (["--bundle", "{mca}", "--top-k", "4", "x"], 1, "--top-k is 4, must be a whole number from 1 to 3"),
        (["--bundle", "{mca}", "a", " "], 1, "text 2 is empty"),
        (
            ["--bundle", "{mca}", "ok", LONG],
            1,
            "text 2 has 8202 tokens, must have at most 8192, or give --truncate",
        ),
        (["--bundle", "/nowhere", "x"], 1, "bundle /nowhere is not a folder"),
        (["--bundle", "{mca}", "--input", "/nowhere.txt"], 1, "/nowhere.txt cannot be read: No such file"),
        (["--url", "http://127.0.0.1:1", "--max-retries", "0", "x"], 1, "http://127.0.0.1:1 cannot be reached"),
        (["--url", "{url}", "--model", "nope", "x"], 1, "nope"),
        (["--url", "{url}", "x"], 1, "--model is missing, must be one of "),
        (["--url", "{url}", "--model", "mca", "--num-hashes", "8", "x"], 1, "num_hashes"),
        (["--url", "{url}", "--model", "mca", "ok", LONG], 1, "text 2 has"),
        (["--url", "{url}", "--model", "mca", "--api-key", "wrong", "x"], 1, "key"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_classify_tells_what_is_wrong_in_one_sentence(
    run: Run, bundles: dict[str, Path], url: str, arguments: list[str], code: int, sentence: str
) -> None:
    places = {name: str(folder) for name, folder in bundles.items()} | {"url": url}
    exit_code, output, errors = run("classify", *(argument.format(**places) for argument in arguments))
    assert exit_code == code
    assert output == ""
    assert sentence in errors
    assert errors.startswith("attenuator classify: ")
    assert len(errors.splitlines()) == 1


def test_truncate_cuts_what_is_too_long(run: Run, bundles: dict[str, Path]) -> None:
    code, output, _ = run("classify", "--bundle", bundles["mca"], "--truncate", "--json", LONG)
    assert code == 0
    assert records(output)[0]["tokens"] == read_manifest(bundles["mca"]).max_tokens


def test_environment_stands_in_for_flags(
    run: Run, bundles: dict[str, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTENUATOR_URL", url)
    monkeypatch.setenv("ATTENUATOR_MODEL", "yoso")
    monkeypatch.setenv("ATTENUATOR_NUM_HASHES", "24")
    _, output, _ = run("classify", "--json", TEXTS[0])
    assert records(output)[0]["knobs"] == {"num_hashes": 24}
    _, output, _ = run("classify", "--json", "--num-hashes", "12", TEXTS[0])
    assert records(output)[0]["knobs"] == {"num_hashes": 12}


def test_a_closed_pipe_ends_the_command_quietly(bundles: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("\n".join(f"fox number {i}" for i in range(2000)))
    command = [sys.executable, "-m", "attenuator", "classify", "--bundle", str(bundles["mca"]), "--input", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    assert process.stdout.readline().endswith("fox number 0\n")
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=120), errors) == (130, "")


@pytest.mark.parametrize("arguments", [["classify", "BUNDLE", "a fox"], ["inspect", "BUNDLE"], ["--help"]])
def test_a_standard_output_that_takes_nothing_is_said_in_a_sentence(
    arguments: list[str], bundles: dict[str, Path]
) -> None:
    command = [sys.executable, "-m", "attenuator", *arguments]
    command = [str(bundles["mca"]) if part == "BUNDLE" else part for part in command]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    sentence = "attenuator: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, sentence)
    closed = ["sh", "-c", '"$@" >&-', "sh", *command]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["calibrate", "classify", "inspect", "rerank"])
def test_help_teaches(run: Run, command: str) -> None:
    code, output, errors = run(command, "--help")
    assert (code, errors) == (0, "")
    assert "examples:" in output
    assert f"attenuator {command} " in output
    assert "exit codes:" in output


def test_inspect_tells_everything_about_a_yoso_bundle(run: Run, bundles: dict[str, Path]) -> None:
    code, output, errors = run("inspect", bundles["yoso"], "--lengths", "64,256,512")
    assert (code, errors) == (0, "")
    manifest = read_manifest(bundles["yoso"])
    for word in (
        manifest.revision,
        *manifest.labels,
        "Knob num_hashes",
        "YosoAttention x 2",
        "exact value",
        "modelled",
    ):
        assert word in output
    assert "faster from" in output
    assert "exact attention is the better choice" in " ".join(output.split())


def test_inspect_tells_what_mca_can_win_at_most(run: Run, bundles: dict[str, Path]) -> None:
    code, output, _ = run("inspect", bundles["mca"])
    assert code == 0
    text = " ".join(output.split())
    assert "Knob alpha" in text
    assert "even a free one wins at most" in text
    assert "exact attention (alpha 0) is the better choice" in text


def test_inspect_writes_one_json_object(run: Run, bundles: dict[str, Path]) -> None:
    code, output, _ = run("inspect", bundles["softmax"], "--json")
    assert code == 0
    report = json.loads(output)
    assert report["nodes"]["SoftmaxAttention"] == 2
    assert report["manifest"]["knobs"] == []
    assert report["files"].keys() == {*read_manifest(bundles["softmax"]).files, "bundle.json"}
    assert [row["tokens"] for row in report["modelled"]] == [64 << i for i in range(8)]
    assert report["measured"] == []


def test_inspect_measures_this_machine(run: Run, bundles: dict[str, Path], tmp_path: Path) -> None:
    arguments = ["--measure", "--lengths", "40,60", "--budget-s", "0.05", "--threads", "1", "--json"]
    report = json.loads(run("inspect", bundles["yoso"], *arguments, "--num-hashes", "4,16")[1])
    assert [row["tokens"] for row in report["measured"]] == [40, 60]
    for row in report["measured"]:
        assert row["exact_ms"] > 0
        assert set(row["knob_ms"]["num_hashes"]) == {"4.0", "16.0"}
    assert report["verdict"][-1].startswith("Measured here")
    sample = tmp_path / "sample.txt"
    sample.write_text(" ".join(TEXTS))
    report = json.loads(run("inspect", bundles["mca"], *arguments, "--alpha", "0.05,1", "--sample", sample)[1])
    flops = report["measured"][0]["outputs"]["value_flops"]["alpha"]
    assert 0 < flops["1.0"] < flops["0.05"] <= 1


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["/nowhere"], 1, "bundle /nowhere is not a folder"),
        ([], 2, "BUNDLE"),
        (
            ["{yoso}", "--rate", "-5"],
            2,
            "--rate (or ATTENUATOR_RATE) is '-5', must be a number above 0, at most 1000000000",
        ),
        (["{yoso}", "--lengths", "1,x"], 2, "--lengths is '1,x', must be whole numbers from 1 to 8192"),
        (["{yoso}", "--lengths", "8193"], 2, "--lengths is '8193', must be whole numbers from 1 to 8192"),
        (["{yoso}", "--num-hashes", "8,999"], 2, "--num-hashes is '8,999', must be values of num_hashes from 0 to 512"),
        (["{yoso}", "--num-hashes", "8,x"], 2, "--num-hashes is '8,x', must be values of num_hashes from 0 to 512"),
        (["{softmax}", "--alpha", "0.1"], 2, "--alpha is '0.1', but the bundle has no knob alpha; its knobs: none"),
        (["{yoso}", "--budget-s", "0", "--measure"], 2, "--budget-s"),
        (["{yoso}", "--measure", "--sample", "/nowhere.txt"], 1, "/nowhere.txt"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_inspect_tells_what_is_wrong_in_one_sentence(
    run: Run, bundles: dict[str, Path], arguments: list[str], code: int, sentence: str
) -> None:
    places = {name: str(folder) for name, folder in bundles.items()}
    exit_code, output, errors = run("inspect", *(argument.format(**places) for argument in arguments))
    assert (exit_code, output) == (code, "")
    assert sentence in errors
    assert len(errors.splitlines()) == 1


def test_inspect_refuses_a_damaged_bundle(run: Run, bundles: dict[str, Path], tmp_path: Path) -> None:
    for name in (*read_manifest(bundles["mca"]).files, "bundle.json"):
        copy = tmp_path / name.replace(".", "-")
        copy.mkdir()
        for file in bundles["mca"].iterdir():
            data = file.read_bytes()
            (copy / file.name).write_bytes(data[: len(data) // 2] if file.name == name else data)
        code, output, errors = run("inspect", copy)
        assert (code, output) == (1, "")
        assert name in errors
        assert len(errors.splitlines()) == 1


def test_classify_and_client_agree(run: Run, url: str, key: str) -> None:
    with Client(url, api_key=key) as client:
        many = client.classify(TEXTS, model="multi", num_hashes=4)
        sampled = client.classify(TEXTS, model="mca", alpha=0.4)
    lines = records(run("classify", "--url", url, "--model", "multi", "--num-hashes", "4", "--json", *TEXTS)[1])
    assert [record["labels"] for record in lines] == [list(each.labels or ()) for each in many.predictions]
    lines = records(run("classify", "--url", url, "--model", "mca", "--alpha", "0.4", "--json", *TEXTS)[1])
    assert [record["value_flops"] for record in lines] == list(sampled.value_flops or ())


def test_classify_says_why_cuda_cannot_be_used(
    run: Run, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = ["classify", "--bundle", bundles["yoso"], "--json", "good film"]
    code, output, errors = run(*arguments, "--device", "cuda", "--device-id", "2")
    assert (code, output) == (1, "")
    assert errors.startswith("attenuator classify: CUDA device 2 cannot be used: ")
    assert len(errors.splitlines()) == 1
    code, output, errors = run(*arguments, "--device", "auto")
    assert code == 0
    assert records(output)[0]["device"] == "cpu"
    assert errors.startswith("attenuator classify: running on cpu: CUDA device 0 cannot be used: ")
    assert len(errors.splitlines()) == 1


def test_classify_says_why_there_is_no_cuda_for_a_bundle_that_needs_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    folder = tiny.write(tmp_path / "half", "yoso")
    tiny.sign(folder, precision="fp16")
    code, output, errors = run("classify", "--bundle", folder, "--device", "auto", "good film")
    assert (code, output) == (1, "")
    reason, refusal = errors.splitlines()
    assert "running on cpu: CUDA device 0 cannot be used: " in reason
    assert "has precision fp16, which runs on a CUDA device only" in refusal
