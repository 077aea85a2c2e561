"""Attention operators beside the same steps as nodes of ONNX Runtime, a module an operator, named by its key.

Each has `CASES`, what is timed, `tokens` among each one's facts, and `contenders(case, threads)`: runners named `own`,
`nodes` and `softmax` (exact attention over the same rows), which it has compared with each other or with the operator's
reference.
"""
