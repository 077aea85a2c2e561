"""Which ONNX operators ONNX Runtime's CUDA provider computes in half precision.

Source: the kernel registry of onnxruntime-gpu 1.31.1 (`onnxruntime.capi._pybind_state.get_all_opkernel_def()`), kernels
of CUDAExecutionProvider in the domain ai.onnx that cover opset 20. Operators on sequences and control flow are left
out, since no exported graph has them. `docs/OperatorKernels.md` of ONNX Runtime says the same in prose.

A node of a type without a kernel would go to the CPU, which has no bf16 kernel either: the session does not load. So
`half` computes such nodes in fp32.
"""

from __future__ import annotations

from attenuator.precision import PrecisionName

__all__ = ["KERNELS", "KERNEL_OPSET"]

# The opset whose kernels these are; exported graphs have it.
KERNEL_OPSET = 20

_BOTH = """
    Abs Add Cast Compress Concat ConstantOfShape Div Dropout Erf Exp Expand Flatten Gather GatherElements
    GatherND Gelu Gemm Identity IsInf IsNaN LayerNormalization MatMul Max Min Mod Mul Neg Pow RandomNormalLike
    RandomUniformLike ReduceMean ReduceSum Relu Reshape ReverseSequence ScatterElements ScatterND Shape Sigmoid
    Sign SimplifiedLayerNormalization Size Slice Softmax Split Sqrt Squeeze Sub Sum Tanh Tile Transpose Trilu
    Unsqueeze Where
"""
_FP16_ALONE = """
    ArgMax ArgMin AveragePool BatchNormalization Ceil Clip Conv ConvTranspose Cos CumSum DeformConv
    DepthToSpace DequantizeLinear Einsum Elu Equal Floor GRU GlobalAveragePool GlobalMaxPool Greater
    GreaterOrEqual HardSigmoid HardSwish InstanceNormalization LRN LSTM LeakyRelu Less LessOrEqual Log
    LogSoftmax LpNormalization MaxPool NonZero OneHot PRelu Pad QuantizeLinear RNN RandomNormal RandomUniform
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMin ReduceProd ReduceSumSquare
    Resize RoiAlign Round Selu Shrink Sin Softplus Softsign SpaceToDepth ThresholdedRelu TopK
"""

KERNELS: dict[PrecisionName, frozenset[str]] = {
    "fp16": frozenset((_BOTH + _FP16_ALONE).split()),
    "bf16": frozenset(_BOTH.split()),
}
