"""A classifier behind LitServe, as its documentation serves one: ONNX Runtime on padded, dynamic batches.

    python litserve_app.py FOLDER PORT MOST_IN_BATCH WAIT_S

FOLDER has `fp32.onnx`, `tokenizer.json` and `config.json`. Runs in the peers' environment, without this project.
"""

import json
import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np
import onnxruntime
from tokenizers import Tokenizer


class Classifier(litserve.LitAPI):
    """Texts to probabilities by label."""

    def __init__(self, folder: Path, most: int, wait_s: float) -> None:
        super().__init__(max_batch_size=most, batch_timeout=wait_s)
        self.folder = folder

    def setup(self, device: str) -> None:
        """Loads what the worker needs."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(self.folder / "fp32.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [each.name for each in self.session.get_inputs()]
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.tokenizer.enable_padding()
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        self.labels = [config["id2label"][str(index)] for index in range(len(config["id2label"]))]

    def decode_request(self, request: dict[str, Any]) -> str:
        """The text."""
        return request["input"]

    def batch(self, inputs: list[str]) -> dict[str, Any]:
        """A padded batch: int64 `[B, tokens]` each."""
        encoded = self.tokenizer.encode_batch(inputs)
        return {
            "input_ids": np.array([each.ids for each in encoded], np.int64),
            "attention_mask": np.array([each.attention_mask for each in encoded], np.int64),
            "token_type_ids": np.array([each.type_ids for each in encoded], np.int64),
        }

    def predict(self, x: dict[str, Any]) -> Any:
        """Probabilities `[B, labels]`."""
        logits = self.session.run(["logits"], {name: x[name] for name in self.inputs})[0]
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return shifted / shifted.sum(axis=1, keepdims=True)

    def unbatch(self, output: Any) -> list[Any]:
        """One row for each request."""
        return list(output)

    def encode_response(self, output: Any) -> dict[str, Any]:
        """The answer."""
        return {"scores": dict(zip(self.labels, map(float, output), strict=True))}


if __name__ == "__main__":
    folder, port, most, wait_s = sys.argv[1:]
    server = litserve.LitServer(
        Classifier(Path(folder), int(most), float(wait_s)), accelerator="cpu", workers_per_device=1
    )
    server.run(host="127.0.0.1", port=int(port), log_level="warning", generate_client_file=False)
