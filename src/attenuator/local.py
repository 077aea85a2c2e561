"""A bundle in this process: `attenuator.load(folder).classify(texts, keep=0.25)`.

Answers are those of `POST /v1/classify`, bit for bit at equal knobs and seed, in the same types and with the same
errors; there is no queue, no key, no load and no limit on how many inputs a call has.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, get_args

from attenuator.api import ChosenBy, Classification, LabelScore, Options, Prediction
from attenuator.errors import InvalidRequest, UnknownField, printable
from attenuator.ops import KNOBS
from attenuator.ops.knobs import DEFAULT_SEED, KnobValue, shown
from attenuator.ops.spec import SEED_HIGH
from attenuator.ranking import Ranking
from attenuator.runtime import CPU, Device, Encoded, Input, Model, Row, RowResult, choose, lists
from attenuator.runtime import load as load_model
from attenuator.runtime.batch import by_output
from attenuator.runtime.calibrated import knobs_of
from attenuator.runtime.device import DeviceSetting
from attenuator.runtime.explaining import Answered, Runner, RunOutcome, answer, check_certainty, judge_of
from attenuator.runtime.python_inputs import listed, parse, plain, scalar
from attenuator.runtime.request import (
    OPTIONS,
    check_goals,
    check_top_k,
    check_values,
    parse_input,
    unknown_field,
)
from attenuator.runtime.session import cpu_count
from attenuator.texts import parts

# Fields of a request that say how a service is to treat it among others.
OF_SERVICES = ("model", "timeout_ms", "max_latency_ms", "priority", "degradable_to")
BATCH_TOKENS, BATCH_ROWS = 2048, 32  # at most, of inputs that run together
MAX_THREADS = 1024  # as on the command line
SHARE = 16  # inputs that a thread tokenizes in one go

Run = Callable[[Sequence[Row]], list[RowResult]]


@dataclass(frozen=True, slots=True)
class Call:
    """What a call asks of each of its inputs, checked against the model.

    Attributes:
        requested: the knobs that it set.
        options: its other fields.
        has_seed: whether a seed is among them; None draws one, and without one it is `DEFAULT_SEED`.
    """

    requested: dict[str, KnobValue]
    options: Options
    has_seed: bool

    def seed(self) -> int:
        """The seed of one request."""
        seed = self.options.seed if self.has_seed else DEFAULT_SEED
        return secrets.randbelow(SEED_HIGH + 1) if seed is None else seed


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
            **knobs: accuracy against time, such as `keep=0.25`; one that is None or left out is the model's to choose.

        Returns:
            One prediction per input, with the knobs and the seed; `columns()` has them as lists.

        Raises:
            InvalidRequest: names the field, what it is and what is allowed (`UnknownField`, `KnobOutOfRange`,
                `InputTooLong`, `NotCalibrated` and `GoalOutOfReach` are kinds of it).
            EngineError: ONNX Runtime failed.
        """
        started = time.perf_counter()
        call = self._checked(
            min_agreement=min_agreement,
            explain=explain,
            escalate=escalate,
            seed=seed,
            top_k=top_k,
            truncate=truncate,
            return_logits=return_logits,
            **knobs,
        )
        encoded = self._spread(partial(_encoded, self.model, call), list(parse(inputs)))
        return self._answer(call, encoded, self._run, started)

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
            rescore: score so many of the best again, exactly, in a second step.
            seed: of the random streams; None draws one.
            truncate: cut pairs that are longer than the model takes, instead of refusing them.
            **knobs: of the first step; one that is None or left out is the model's to choose.

        Returns:
            The documents' places and scores, best first, as `POST /v1/rerank` has them.

        Raises:
            InvalidRequest, EngineError: as `classify`. Budgets and goals for a list need a service.
        """
        started = time.perf_counter()
        fields = {"top_n": top_n, "return_documents": return_documents, "rescore": rescore, **knobs}
        asked = lists.check(self.model, {name: scalar(value) for name, value in fields.items()})
        texts, pairs = lists.pairs_of(query, listed(documents))
        call = self._checked(seed=seed, truncate=truncate, return_logits=True, **knobs)
        encoded = self._spread(partial(_encoded, self.model, call), pairs)
        steps = [lists.Step(range(len(pairs)), self._answer(call, encoded, self._run, started))]
        if asked.rescore is not None:
            best, exact = steps[0].best(asked.rescore), replace(call, requested=self.model.knobs.exact())
            again = self._answer(exact, [encoded[place] for place in best], self._run, time.perf_counter())
            steps.append(lists.Step(best, again))
        return lists.ranking(steps, texts, asked)

    def classify_each(self, inputs: Sequence[Any], **fields: Any) -> list[Classification | InvalidRequest]:
        """Classifies inputs as a request for each of them, of which one may be refused; arguments as `classify`.

        Raises:
            InvalidRequest: a field besides the inputs is wrong.
            EngineError: ONNX Runtime failed.
        """
        call = self._checked(**fields)

        def encoded(value: Any) -> Encoded | InvalidRequest:
            try:
                return _encoded(self.model, call, parse_input(plain(value), "inputs[0]"))
            except InvalidRequest as error:
                return error

        def one(item: Encoded) -> Classification:
            # not self._run: it would wait for the pool that runs this
            return self._answer(call, [item], self.model.run, time.perf_counter())

        everything = self._spread(encoded, inputs)
        items = [item for item in everything if not isinstance(item, InvalidRequest)]
        if call.options.explain or call.options.escalate:  # each runs several times, at settings of its own
            answers = iter(list(self._pool.map(one, items)))
        else:
            answers = self._together(call, items)
        return [item if isinstance(item, InvalidRequest) else next(answers) for item in everything]

    def _together(self, call: Call, items: Sequence[Encoded]) -> Iterator[Classification]:
        """Answers to inputs that have nothing in common but their batches."""
        started = time.perf_counter()
        chosen = [self._knobs(call, len(item.token_ids)) for item in items]
        rows = [
            Row(item.token_ids, item.type_ids, knobs, call.seed())
            for item, (knobs, _) in zip(items, chosen, strict=True)
        ]
        for row, result, (_, by) in zip(rows, self._run(rows), chosen, strict=True):
            yield self._classification(call, Answered([row], [result], 0.0), by, started, started)

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

    def _checked(self, **fields: Any) -> Call:
        """What a call says besides its inputs, checked."""
        model, values = self.model, {name: scalar(value) for name, value in fields.items()}
        known = [*model.knobs.names, *(name for name in OPTIONS if name not in OF_SERVICES)]
        for name in values:
            if name in OF_SERVICES:
                allowed = ", ".join(known)
                sentence = f"{name} is a field of a service's requests; here the fields are {allowed}"
                raise UnknownField(sentence, param=name, allowed=allowed)
            if name not in OPTIONS and name not in KNOBS:
                raise unknown_field(name, known)
        stated = {name: value for name, value in values.items() if value is not None or name == "seed"}
        requested = {name: value for name, value in stated.items() if name in KNOBS}
        knobs = model.knobs.check(requested)
        options = check_values(
            Options, {name: stated[name] for name in stated.keys() - KNOBS.keys()}, nullable=("seed",)
        )
        if options.min_agreement is not None:
            beside = [] if options.escalate else list(requested)
            check_goals(model.manifest, model.calibration, {"min_agreement": options.min_agreement}, beside)
        check_certainty(model, options)
        check_top_k(len(model.manifest.labels), options)
        return Call({name: knobs[name] for name in requested}, options, "seed" in stated)

    def _knobs(self, call: Call, longest: int) -> tuple[Mapping[str, KnobValue], ChosenBy]:
        """A value for every knob, and who chose them, as `serve.accuracy.plan` says without limits and load."""
        model, goal = self.model, call.options.min_agreement
        if call.options.escalate and goal is not None:
            start = judge_of(model).start(longest, goal, lambda knobs: True)  # refuses what no setting reaches
            return model.knobs.check(call.requested) if call.requested or not start else start, "escalation"
        by: ChosenBy = "goal" if goal is not None else "caller" if call.requested else "default"
        return knobs_of(model.knobs, model.calibration, longest, call.requested, goal), by

    def _run(self, rows: Sequence[Row]) -> list[RowResult]:
        """Runs any number of rows, those of similar lengths together, on all cores; a result for each, in order."""
        lengths = [len(row.token_ids) for row in rows]
        order = sorted(range(len(rows)), key=lengths.__getitem__)
        places = list(parts(order, lengths.__getitem__, BATCH_ROWS, BATCH_TOKENS))
        batches = [[rows[place] for place in each] for each in places]
        answers = self._pool.map(self.model.run, batches) if len(batches) > 1 else map(self.model.run, batches)
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
            predictions=tuple(
                self._prediction(result, call.options, more)
                for result, more in zip(answered.results, answered.fields(), strict=True)
            ),
            knobs=dict(knobs),
            requested=call.requested,
            chosen_by=by,
            expected_agreement=expected_agreement,
            seed=answered.rows[0].seed,
            tokens=tuple(len(row.token_ids) for row in answered.rows),
            steps=answered.steps,
            relative_cost=answered.relative_cost,
            timing_ms={name: round(seconds * 1e3, 3) for name, seconds in timing_ms.items()},
            **by_output(answered.results),
        )

    def _prediction(self, result: RowResult, options: Options, more: Mapping[str, Any]) -> Prediction:
        scored = self.model.predict(result.logits)
        ranking = scored.ranking[: options.top_k] if options.top_k else None
        return Prediction(
            label=scored.label,
            score=scored.score,
            labels=None if scored.labels is None else tuple(scored.labels),
            scores=ranking and tuple(LabelScore(label=label, score=score) for label, score in ranking),
            logits=tuple(scored.logits) if options.return_logits else None,
            **more,
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
