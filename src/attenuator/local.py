"""A bundle in this process: `attenuator.load(folder).classify(texts, keep=0.25)`.

Answers are those of `POST /v1/classify`, bit for bit at equal knobs and seed, in the same types and with the same
errors; there is no queue, no key, no load and no limit on how many inputs a call has.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, get_args

from attenuator.api import ChosenBy, Classification
from attenuator.classify_request import Aggregation, Join
from attenuator.errors import InvalidRequest, printable
from attenuator.ops.knobs import DEFAULT_SEED, KnobValue, shown
from attenuator.ranking import Ranking
from attenuator.runtime import CPU, Device, Encoded, Input, Model, Row, RowResult, choose, python_ranking
from attenuator.runtime import load as load_model
from attenuator.runtime.calibrated import knobs_of
from attenuator.runtime.device import DeviceSetting
from attenuator.runtime.entities import Tagging
from attenuator.runtime.explaining import Answered, Runner, RunOutcome, answer, judge_of
from attenuator.runtime.python_calls import Call
from attenuator.runtime.python_inputs import listed, parse, plain
from attenuator.runtime.request import parse_input
from attenuator.runtime.scores import ranked
from attenuator.runtime.session import cpu_count
from attenuator.texts import parts

BATCH_TOKENS, BATCH_ROWS = 2048, 32  # at most, of inputs that run together
MAX_THREADS, MAX_DEVICE_ID = 1024, 255  # as on the command line
SHARE = 16  # inputs that a thread tokenizes in one go

Run = Callable[[Sequence[Row]], list[RowResult]]


class LocalModel:
    """A loaded bundle; threads may share it.

    Short inputs are answered side by side, a batch on each core; a long one alone has all cores.

    Attributes:
        model: what runs the bundle: its manifest, its knobs, its calibration.
    """

    def __init__(self, model: Model, workers: int = 1) -> None:
        """Takes a model; `workers` batches run at a time."""
        self.model = model
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, "attenuator")

    def __enter__(self) -> Self:
        """Does nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes it."""
        self.close()

    def close(self) -> None:
        """Ends its threads; what waits to run is dropped."""
        self._pool.shutdown(cancel_futures=True)

    @property
    def labels(self) -> list[str]:
        """The labels, in the order of the logits."""
        return list(self.model.manifest.labels)

    def classify(
        self,
        inputs: Any,
        *,
        min_agreement: float | None = None,
        explain: bool = False,
        escalate: bool = False,
        seed: int | None = DEFAULT_SEED,
        top_k: int | None = None,
        truncate: bool = False,
        return_logits: bool = False,
        candidate_labels: Sequence[str] | None = None,
        hypothesis_template: str | None = None,
        multi_label: bool = False,
        join: Join | None = None,
        window: int | None = None,
        stride: int | None = None,
        aggregation: Aggregation | None = None,
        **knobs: int | float | None,
    ) -> Classification:
        """Classifies one or more inputs, as one request of the HTTP API.

        One setting serves all of them: a goal, and the default goal of a calibration, choose it by the longest.

        Args:
            inputs: a text; `{"text": .., "text_pair": ..}` or `{"token_ids": ..}`; or a list, NumPy array, pandas
                Series or iterator of them, in which a tuple of two texts is a pair.
            min_agreement: a goal in place of knobs: the cheapest ones are chosen whose answers agree with the exact
                ones on at least this share of inputs.
            explain: also estimate how sure each answer is.
            escalate: run again, at surer knobs, each input whose answer is the exact one with less probability than
                `min_agreement`.
            seed: of the random streams; None draws one.
            top_k: also return the scores of that many labels.
            truncate: cut inputs that are longer than the model takes, instead of refusing them.
            return_logits: also return the logits.
            candidate_labels: labels to choose from in place of the model's own, for texts and a model of natural
                language inference; without `top_k`, `scores` has all of them.
            hypothesis_template: what the model judges of each text, with a label in place of `{}`; by default
                `This example is {}.`
            multi_label: score each of `candidate_labels` by itself: several or none may be right.
            join: read long texts in windows; an answer has the `"mean"` or the largest (`"max"`) of each label's scores
                and logits over them, or is that of the `"first"` one.
            window: beside `join`, the tokens of a window, special ones included, by default the model's most; else
                the knob of that name.
            stride: from the beginning of a window to that of the next; by default they lie side by side.
            aggregation: how the tokens of a token classifier become `entities`, as in transformers' pipeline: `"none"`,
                `"simple"` (the default), `"first"`, `"max"` or `"average"`.
            **knobs: accuracy against time, such as `keep=0.25`; one that is None or left out is the model's to choose.

        Returns:
            One prediction per input, with the knobs and the seed; `columns()` has them as lists.

        Raises:
            InvalidRequest: names the field, what it is and what is allowed (`UnknownField`, `KnobOutOfRange`,
                `InputTooLong`, `NotCalibrated` and `GoalOutOfReach` are kinds of it).
            EngineError: ONNX Runtime failed.
        """
        started = time.perf_counter()
        fields = dict(
            min_agreement=min_agreement,
            explain=explain,
            escalate=escalate,
            seed=seed,
            top_k=top_k,
            truncate=truncate,
            return_logits=return_logits,
            candidate_labels=candidate_labels,
            hypothesis_template=hypothesis_template,
            multi_label=multi_label,
            join=join,
            window=window,
            stride=stride,
            aggregation=aggregation,
            **knobs,
        )
        call = Call.of(self.model, fields)
        encoded = self._spread(partial(_encoded, self.model, call), list(call.asked_about(parse(inputs))))
        return self._answer(call, call.rows(encoded), self._run, started)

    def rerank(
        self,
        query: str,
        documents: Any,
        *,
        top_n: int | None = None,
        return_documents: bool = False,
        rescore: int | None = None,
        seed: int | None = DEFAULT_SEED,
        truncate: bool = False,
        **knobs: int | float | None,
    ) -> Ranking:
        """Ranks documents by how well they answer a query, for bundles with one output.

        Args:
            query: a text.
            documents: a list, NumPy array, pandas Series or iterator of texts, or of `{"text": ..}`; any number.
            top_n: so many of the best are returned; all by default.
            return_documents: return their texts too.
            rescore: score so many of the best again, exactly, in a second step, where the first was not exact.
            seed: of the random streams; None draws one.
            truncate: cut pairs that are longer than the model takes, instead of refusing them.
            **knobs: of the first step; one that is None or left out is the model's to choose.

        Returns:
            The documents' places and scores, best first, as `POST /v1/rerank` has them.

        Raises:
            InvalidRequest, EngineError: as `classify`. Budgets and goals for a list need a service.
        """
        started = time.perf_counter()
        asked = python_ranking.check(
            self.model, top_n=top_n, return_documents=return_documents, rescore=rescore, **knobs
        )
        texts, pairs = python_ranking.pairs_of(query, listed(documents))
        call = Call.of(self.model, {"seed": seed, "truncate": truncate, "return_logits": True, **knobs})
        encoded = self._spread(partial(_encoded, self.model, call), pairs)
        steps = [python_ranking.Step(range(len(pairs)), self._answer(call, encoded, self._run, started))]
        exact = replace(call, requested=self.model.knobs.exact())
        if asked.rescore is not None and steps[0].answer.knobs != exact.requested:
            best = sorted(ranked(list(steps[0].outputs.values()))[: asked.rescore])
            again = self._answer(exact, [encoded[place] for place in best], self._run, time.perf_counter())
            steps.append(python_ranking.Step(best, again))
        return python_ranking.ranking(steps, texts, asked)

    def classify_each(self, inputs: Sequence[Any], **fields: Any) -> list[Classification | InvalidRequest]:
        """Classifies inputs as a request for each of them, of which one may be refused; arguments as `classify`.

        Raises:
            InvalidRequest: a field besides the inputs is wrong.
            EngineError: ONNX Runtime failed.
        """
        call = Call.of(self.model, fields)

        def encoded(value: Any) -> list[Encoded] | InvalidRequest:
            try:
                items = call.asked_about([parse_input(plain(value), "inputs[0]")])
                return [_encoded(self.model, call, item) for item in items]
            except InvalidRequest as error:
                return error

        run = partial(self._run, mapped=map)  # the pool, which runs `one`, cannot be waited for in it

        def one(rows: list[Encoded]) -> Classification:
            own = call.apart()
            return self._answer(own, own.rows(rows), run, time.perf_counter())

        everything = self._spread(encoded, inputs)
        items = [item for item in everything if not isinstance(item, InvalidRequest)]
        tags = isinstance(call.grouped, Tagging) and call.grouped.windows is None
        several_rows = call.options.explain or call.options.escalate or (call.grouped is not None and not tags)
        if several_rows:
            answers = iter(list(self._pool.map(one, items)))
        else:
            answers = self._together(call, [item for [item] in items])
        return [item if isinstance(item, InvalidRequest) else next(answers) for item in everything]

    def _together(self, call: Call, items: Sequence[Encoded]) -> Iterator[Classification]:
        """Answers to inputs that have nothing in common but their batches."""
        started = time.perf_counter()
        chosen = [self._knobs(call, len(item.token_ids)) for item in items]
        rows = [
            Row(item.token_ids, item.type_ids, knobs, call.seed())
            for item, (knobs, _) in zip(items, chosen, strict=True)
        ]
        for item, row, result, (_, by) in zip(items, rows, self._run(rows), chosen, strict=True):
            own = call.apart()
            own.rows([item])
            yield self._classification(own, Answered([row], [result], 0.0), by, started, started)

    def _answer(self, call: Call, encoded: Sequence[Encoded], run: Run, started: float) -> Classification:
        """The answer to one request."""
        tokenized = time.perf_counter()
        options, seed = call.options, call.seed()
        knobs, by = self._knobs(call, max(len(item.token_ids) for item in encoded))
        rows = [Row(item.token_ids, item.type_ids, knobs, seed) for item in encoded]
        if options.explain or options.escalate:
            reach = options.min_agreement if options.escalate else None
            answered = _explained(self.model, rows, run, explain=options.explain, reach=reach)
        else:
            answered = Answered(rows, run(rows), 0.0)
        return self._classification(call, answered, by, started, tokenized)

    def _knobs(self, call: Call, longest: int) -> tuple[Mapping[str, KnobValue], ChosenBy]:
        """A value for every knob, and who chose them, as `serve.accuracy.plan` says without limits and load."""
        model, goal = self.model, call.options.min_agreement
        if call.options.escalate and goal is not None:
            start = judge_of(model).start(longest, goal, lambda knobs: True)  # refuses what no setting reaches
            return model.knobs.check(call.requested) if call.requested or not start else start, "escalation"
        by: ChosenBy = "goal" if goal is not None else "caller" if call.requested else "default"
        return knobs_of(model.knobs, model.calibration, longest, call.requested, goal), by

    def _run(
        self, rows: Sequence[Row], mapped: Callable[..., Iterable[list[RowResult]]] | None = None
    ) -> list[RowResult]:
        """Runs any number of rows, those of similar lengths together; a result for each, in order.

        `mapped` runs the batches, by default on all cores.
        """
        lengths = [len(row.token_ids) for row in rows]
        order = sorted(range(len(rows)), key=lengths.__getitem__)
        places = list(parts(order, lengths.__getitem__, BATCH_ROWS, BATCH_TOKENS))
        batches = [[rows[place] for place in each] for each in places]
        answers = (mapped or self._pool.map if len(batches) > 1 else map)(self.model.run, batches)
        results: dict[int, RowResult] = {}
        for each, answered in zip(places, answers, strict=True):
            results.update(zip(each, answered, strict=True))
        return [results[place] for place in range(len(rows))]

    def _spread(self, work: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        """Does something for each value, on all cores where there are many."""
        if len(values) <= SHARE or self._workers == 1:
            return [work(value) for value in values]
        shares = [values[first : first + SHARE] for first in range(0, len(values), SHARE)]
        done = self._pool.map(lambda share: [work(value) for value in share], shares)
        return [each for share in done for each in share]

    def _classification(
        self, call: Call, answered: Answered, by: ChosenBy, started: float, tokenized: float
    ) -> Classification:
        """The answer in the API's form."""
        model, ended = self.model, time.perf_counter()
        knobs, expected_agreement = answered.setting(model)
        timing_ms = {"tokenize": tokenized - started, "compute": ended - tokenized, "total": ended - started}
        return Classification(
            model=model.manifest.name,
            revision=model.manifest.revision,
            device=model.device_name,
            knobs=dict(knobs),
            requested=call.requested,
            chosen_by=by,
            expected_agreement=expected_agreement,
            seed=answered.rows[0].seed,
            steps=answered.steps,
            relative_cost=answered.relative_cost,
            timing_ms={name: round(seconds * 1e3, 3) for name, seconds in timing_ms.items()},
            **call.each(model, answered),
        )


def load(
    bundle: str | os.PathLike[str],
    *,
    device: DeviceSetting = "cpu",
    device_id: int = 0,
    threads: int | None = None,
    check: bool = True,
) -> LocalModel:
    """Loads a bundle into this process.

    Args:
        bundle: its folder.
        device: where it runs; `auto` is CUDA where it works, else the CPU.
        device_id: which CUDA device.
        threads: CPU threads; as many as there are cores by default. Answers do not depend on them.
        check: first loads and probes it in a child process, so that a damaged or hostile bundle harms only that; takes
            about a second.

    Raises:
        BundleError: one sentence that names the file and what is wrong with it.
        OperatorLibraryMissing: the operators are not built, or not for the device.
        DeviceUnavailable: the device cannot be used.
        InvalidRequest: an argument is none of those values.
    """
    if device not in get_args(DeviceSetting):
        devices = " or ".join(get_args(DeviceSetting))
        sentence = f"device is '{printable(str(device))}', must be {devices}"
        raise InvalidRequest(sentence, param="device", allowed=devices)
    if type(device_id) is not int or not 0 <= device_id <= MAX_DEVICE_ID:
        allowed = f"a whole number from 0 to {MAX_DEVICE_ID}"
        raise InvalidRequest(f"device_id is {shown(device_id)}, must be {allowed}", param="device_id", allowed=allowed)
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        allowed = f"a whole number from 1 to {MAX_THREADS}, or None"
        raise InvalidRequest(f"threads is {shown(threads)}, must be {allowed}", param="threads", allowed=allowed)
    return on_device(Path(bundle), choose(device, device_id).device, threads=threads, check=check)


def on_device(folder: Path, device: Device = CPU, *, threads: int | None = None, check: bool = True) -> LocalModel:
    """As `load`, on a device that was chosen."""
    # Each batch may use every core as well: that takes no more CPU time a text, and a text alone is not slower.
    threads = threads or cpu_count()
    model = load_model(folder, device=device, threads=threads, check=check)
    return LocalModel(model, threads if device.kind == "cpu" else 1)


def _encoded(model: Model, call: Call, item: Input) -> Encoded:
    return item.encode(model.encoder, call.options.truncate)


def _explained(model: Model, rows: list[Row], run: Run, *, explain: bool, reach: float | None) -> Answered:
    """Answers with `explain` or `escalate`, whether or not an event loop runs in this thread, as in a notebook."""

    async def ran(again: list[Row]) -> RunOutcome:
        return RunOutcome(run(again))

    with ThreadPoolExecutor(1) as aside:
        work = answer(model, rows, Runner(ran), explain=explain, reach=reach)
        return aside.submit(asyncio.run, work).result()


__all__ = ["LocalModel", "load", "on_device"]
