"""Routes in the forms of other servers, over the path of `POST /v1/classify`: their clients need only another address.

* `tei`: text-embeddings-inference and Hugging Face's clients
* `vllm`: vLLM and SGLang
* `openinference`: the Open Inference Protocol of KServe and Triton
"""
