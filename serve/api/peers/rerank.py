"""Rerankers: `POST /rerank`, `/v1/rerank` and `/v2/rerank`, and `POST /score`.

Bodies are those of Cohere (version 2), Jina and vLLM and, on `/rerank`, of text-embeddings-inference. A pair of a query
and a document is one input on the path of every classification, so that its score depends on no other document. As in
those servers, models with one output rank, and the score is the sigmoid of that output.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from attenuator.api import CLASSIFY
from attenuator.errors import MAX_NAME, InvalidRequest, UnknownModel, printable
from attenuator.json_body import parse_json
from attenuator.ops.knobs import shown
from attenuator.runtime import Input, Model
from attenuator.runtime.pairs import check_reranker, paired, texts_of
from attenuator.runtime.request import check_values, wrong
from attenuator.runtime.scores import ranked, sigmoid
from attenuator.serve import events
from attenuator.serve.accuracy.list_steps import CASCADE, ListFields
from attenuator.serve.api.answers import Answer, Write, elements
from attenuator.serve.api.peers import forms, tei, vllm
from attenuator.serve.api.peers import rerank_types as types
from attenuator.serve.api.schema import HEADER, TRUNCATE, ParsedRequest, assemble, in_own_names
from attenuator.serve.edge.arrivals import JSON

OTHERWISE = f"ask POST {CLASSIFY}"


class Rerank(forms.PeerForm):
    """One request to rank documents."""

    model_places = f" in the body and in the header {HEADER}"
    # The rerankers of LangChain and LlamaIndex have no place for them.
    header_names = ("model", TRUNCATE, *types.StepOptions.model_fields)

    def __init__(self, request: Request, served: Callable[[str], Model], *, takes_texts: bool = False) -> None:
        """Takes a request.

        Args:
            request: of the web server.
            served: gives the model of a name; UnknownModel where none has it.
            takes_texts: whether it may be in the form of text-embeddings-inference.
        """
        super().__init__(request)
        self._served = served
        self._takes_texts = takes_texts

    def parse(self, body: bytes) -> dict[str, Any]:
        """The fields of body and header."""
        fields = parse_json(body, '{"query": .., "documents": [..]}')
        in_texts = self._takes_texts and "texts" in fields and "documents" not in fields
        kind: type[types.RerankOptions | types.RankOptions] = types.RankOptions if in_texts else types.RerankOptions
        self._kind = kind
        gathered = self.read(fields, ["query", kind.several, *kind.model_fields])
        if CASCADE not in gathered:
            return gathered
        try:
            return gathered | {"model": cascade_of(gathered, self._served)[0]}
        except InvalidRequest as error:
            raise in_own_names(error, self.own_names) from None

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """To the request that the service answers."""
        options = check_values(self._kind, forms.selected(fields, self._kind.model_fields), self._kind.nullable)
        query, documents = texts_of(fields, "query"), texts_of(fields, options.several)
        self._options, self._texts = options, list(documents.values()) if options.returns else None
        last = None if options.cascade is None else self._served(options.cascade[1])
        if last is not None:
            check_reranker(last.manifest, OTHERWISE, f"{CASCADE}[1]")  # it may have been replaced meanwhile
        cuts = [options.cuts(each) for each in (model, last) if each is not None]
        if options.max_cost is not None:
            events.note(max_cost=options.max_cost)
        of_list = ListFields(options.rescore, options.max_cost, last, options.top_n)
        return parsed(fields, model, options, paired(query, documents), any(cuts), of_list)

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """The documents with their scores, best first."""
        options, texts, scores = self._options, self._texts, scores_of(answer, raw=self._options.raw)
        outputs = answer.logits[:, 0].tolist()  # by these, for the scores of large ones are all 1
        best = ranked(outputs, answer.again)[: options.top_n or None]
        two, again = bool(answer.again), answer.again

        def entry(place: int) -> dict[str, Any]:
            told = options.entry(place, scores[place], None if texts is None else texts[place])
            return told | {"step": 1 + (place in again)} if two or options.tells_steps else told

        def rows(span: slice) -> bytes:
            return elements([entry(place) for place in best[span]])

        headers = headers | forms.result_header(answer)
        results = await write(rows, len(best), 5, b",")
        if isinstance(options, types.RankOptions):
            return Response(b"[%b]" % results, 200, headers, JSON)
        usage = vllm.usage_of(answer)
        meta = types.Meta(tokens=types.Tokens(input_tokens=usage.total_tokens))
        name = vllm.answer_id("rerank", options)
        model, timing_ms = answer.fields["model"], answer.fields["timing_ms"]
        steps = (
            answer.fields["steps"]
            if two
            else [{"model": model, "knobs": answer.fields["knobs"], "documents": len(scores)}]
        )
        head = types.Ranking(id=name, model=model, usage=usage, meta=meta, results=(), steps=steps, timing_ms=timing_ms)
        return Response(forms.filled(head, "results", results), 200, headers, JSON)


class ScorePairs(forms.PeerForm):
    """One `POST /score`."""

    def parse(self, body: bytes) -> dict[str, Any]:
        """The fields of body and header."""
        fields = parse_json(body, '{"text_1": .., "text_2": ..}')
        gathered = self.read(fields, ["text_1", "text_2", *vllm.PoolingOptions.model_fields])
        self.own_names = {**self.own_names, TRUNCATE: "truncate_prompt_tokens"}
        return gathered

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """To the request that the service answers."""
        kind = vllm.PoolingOptions
        self._options = options = check_values(kind, forms.selected(fields, kind.model_fields), vllm.NULLABLE)
        tei.check_side("truncation_side", options.truncation_side, model)
        pairs = paired(texts_of(fields, "text_1"), texts_of(fields, "text_2"))
        return parsed(fields, model, options, pairs, vllm.truncates(options.truncate_prompt_tokens, model))

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """One score for each pair."""
        scores = scores_of(answer, raw=self._options.use_activation is False)

        def rows(span: slice) -> bytes:
            named = enumerate(scores[span], span.start)
            return elements([{"index": index, "object": "score", "score": score} for index, score in named])

        data = await write(rows, len(scores), 4, b",")
        name, created, usage = vllm.answer_id("score", self._options), int(time.time()), vllm.usage_of(answer)
        head = types.PairScores(id=name, created=created, model=answer.fields["model"], usage=usage, data=())
        return Response(forms.filled(head, "data", data), 200, headers | forms.result_header(answer), JSON)


def parsed(
    fields: Mapping[str, Any],
    model: Model,
    options: vllm.PoolingOptions | types.RankOptions,
    pairs: Iterator[Input],
    truncate: bool,
    of_list: ListFields | None = None,
) -> ParsedRequest:
    """To the request that the service answers, for models that rank."""
    check_reranker(model.manifest, OTHERWISE)
    own = forms.selected(fields, set(forms.shared_names()) - type(options).model_fields.keys())
    own |= forms.class_of(getattr(options, "priority", None), vllm.FIRST_BATCH_PRIORITY)
    return assemble(own | {TRUNCATE: truncate}, model, pairs, of_list=of_list)


def cascade_of(fields: Mapping[str, Any], served: Callable[[str], Model]) -> tuple[str, str]:
    """The names of the models of a cascade, the first step's and the last.

    Raises:
        InvalidRequest: they are not two, `model` is another one than the last, or one does not rank.
        UnknownModel: one is not served.
    """
    names, allowed = fields[CASCADE], "a list of two different names of served models"
    if not isinstance(names, list):
        raise wrong(CASCADE, f"is {shown(names)}", allowed)
    if len(names) != 2:
        raise wrong(CASCADE, f"has {len(names)} name{'s' * (len(names) != 1)}", allowed)
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise wrong(f"{CASCADE}[{place}]", f"is {shown(name)}", "the name of a served model")
        try:
            check_reranker(served(name).manifest, OTHERWISE, f"{CASCADE}[{place}]")
        except UnknownModel as error:
            raise UnknownModel(str(error), param=f"{CASCADE}[{place}]", allowed=error.allowed) from None
    first, last = names
    if first == last:
        raise wrong(CASCADE, f"names '{printable(first, MAX_NAME)}' twice", allowed)
    if fields.get("model", last) != last:
        sentence = f"model stands beside {CASCADE}, must be left out there or name its last one, '{last}'"
        raise InvalidRequest(sentence, param="model", allowed=f"'{last}', or no model beside {CASCADE}")
    return first, last


def scores_of(answer: Answer, *, raw: bool) -> list[float]:
    """The score of each pair."""
    outputs = answer.logits[:, 0]
    return list((outputs.astype(float) if raw else sigmoid(outputs)).tolist())
