"""Rerankers: `POST /rerank`, `/v1/rerank` and `/v2/rerank`, and `POST /score`.

Bodies are those of Cohere (version 2), Jina and vLLM and, on `/rerank`, of text-embeddings-inference. A pair of a query
and a document is one input on the path of every classification, so that its score depends on no other document. As in
those servers, models with one output rank, and the score is the sigmoid of that output.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from attenuator.api import CLASSIFY
from attenuator.json_body import parse_json
from attenuator.runtime import Input, Model
from attenuator.runtime.pairs import check_reranker, paired, texts_of
from attenuator.runtime.request import check_values
from attenuator.runtime.scores import ranked, sigmoid
from attenuator.serve.api.answers import Answer, Write, elements
from attenuator.serve.api.peers import forms, tei, vllm
from attenuator.serve.api.peers import rerank_types as types
from attenuator.serve.api.schema import HEADER, TRUNCATE, ParsedRequest, assemble
from attenuator.serve.edge.arrivals import JSON


class Rerank(forms.PeerForm):
    """One request to rank documents."""

    model_places = f" in the body and in the header {HEADER}"
    header_names = ("model", TRUNCATE)  # the rerankers of LangChain and LlamaIndex have no place for it

    def __init__(self, request: Request, *, takes_texts: bool = False) -> None:
        """`takes_texts` says whether it may be in the form of text-embeddings-inference."""
        super().__init__(request)
        self._takes_texts = takes_texts

    def parse(self, body: bytes) -> dict[str, Any]:
        """The fields of body and header."""
        fields = parse_json(body, '{"query": .., "documents": [..]}')
        in_texts = self._takes_texts and "texts" in fields and "documents" not in fields
        kind: type[types.RerankOptions | types.RankOptions] = types.RankOptions if in_texts else types.RerankOptions
        self._kind = kind
        return self.read(fields, ["query", kind.several, *kind.model_fields])

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """To the request that the service answers."""
        options = check_values(self._kind, forms.selected(fields, self._kind.model_fields), self._kind.nullable)
        query, documents = texts_of(fields, "query"), texts_of(fields, options.several)
        self._options, self._texts = options, list(documents.values()) if options.returns else None
        return parsed(fields, model, options, paired(query, documents), options.cuts(model))

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """The documents with their scores, best first."""
        options, texts, scores = self._options, self._texts, scores_of(answer, raw=self._options.raw)
        best = ranked(answer.logits[:, 0].tolist())[: options.top_n or None]  # the scores of large outputs are all 1

        def rows(span: slice) -> bytes:
            return elements([options.entry(i, scores[i], None if texts is None else texts[i]) for i in best[span]])

        headers = headers | forms.result_header(answer)
        results = await write(rows, len(best), 5, b",")
        if isinstance(options, types.RankOptions):
            return Response(b"[%b]" % results, 200, headers, JSON)
        usage = vllm.usage_of(answer)
        meta = types.Meta(tokens=types.Tokens(input_tokens=usage.total_tokens))
        name = vllm.answer_id("rerank", options)
        head = types.Ranking(id=name, model=answer.fields["model"], usage=usage, meta=meta, results=())
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
) -> ParsedRequest:
    """To the request that the service answers, for models that rank."""
    check_reranker(model.manifest, f"ask POST {CLASSIFY}")
    own = forms.selected(fields, set(forms.shared_names()) - type(options).model_fields.keys())
    own |= forms.class_of(getattr(options, "priority", None), vllm.FIRST_BATCH_PRIORITY)
    return assemble(own | {TRUNCATE: truncate}, model, pairs)


def scores_of(answer: Answer, *, raw: bool) -> list[float]:
    """The score of each pair."""
    outputs = answer.logits[:, 0]
    return list((outputs.astype(float) if raw else sigmoid(outputs)).tolist())
