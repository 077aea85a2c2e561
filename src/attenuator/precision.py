"""Number formats of a bundle's weights and activations: every fact about a precision, once."""

from dataclasses import dataclass
from typing import Literal

PrecisionName = Literal["fp32", "int8", "fp16", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One precision.

    Attributes:
        torch_dtype: name of PyTorch's dtype for weights and activations; linear layers of int8 differ.
        cpu: whether the CPU runs it.
        cuda: whether a CUDA device does; int8 has operators that run on the CPU alone.
        summary: what a person reads beside the name.
        probe_tolerance: largest difference between the probe's logits and those of this machine, as a share of
            max(1, |logit|).
        export_tolerance: largest difference between the exported graph's logits and the trained model's, as a share of
            the largest |logit|; None where ONNX Runtime has no arithmetic for it on the CPU, on which export runs. Tiny
            models of random weights, rounded to 8 bits, move by up to 0.07, trained ones by less than 0.02.
        export_repeats: how often each length occurs in the batch that export compares; rounding needs more rows for an
            estimate of the labels that change.
    """

    torch_dtype: str
    cpu: bool
    cuda: bool
    summary: str
    probe_tolerance: float
    export_tolerance: float | None
    export_repeats: int

    @property
    def half(self) -> bool:
        """Whether weights and activations have 16 bits."""
        return self.torch_dtype != "float32"


PRECISIONS: dict[PrecisionName, Precision] = {
    "fp32": Precision(
        torch_dtype="float32",
        cpu=True,
        cuda=True,
        summary="fp32",
        probe_tolerance=1e-3,
        export_tolerance=1e-3,
        export_repeats=1,
    ),
    "int8": Precision(
        torch_dtype="float32",
        cpu=True,
        cuda=False,
        summary="int8 (linear layers: activations 8 bits a token, weights 7 bits a channel; with VNNI attention)",
        probe_tolerance=2e-2,
        export_tolerance=0.25,
        export_repeats=8,
    ),
    "fp16": Precision(
        torch_dtype="float16",
        cpu=False,
        cuda=True,
        summary="fp16, for CUDA",
        probe_tolerance=2e-2,
        export_tolerance=0.05,
        export_repeats=8,
    ),
    "bf16": Precision(
        torch_dtype="bfloat16",
        cpu=False,
        cuda=True,
        summary="bf16, for CUDA",
        probe_tolerance=2e-2,
        export_tolerance=None,
        export_repeats=8,
    ),
}
