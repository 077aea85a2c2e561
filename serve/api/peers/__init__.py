"""Routes in the forms of other servers, over the path of `POST /v1/classify`: their clients need only another address.

* `tei`: text-embeddings-inference and Hugging Face's clients
* `vllm`: vLLM and SGLang
* `rerank`: rerankers, as Cohere, Jina, vLLM and text-embeddings-inference have them, and vLLM's scores of pairs
* `openinference`: the Open Inference Protocol of KServe and Triton
"""
