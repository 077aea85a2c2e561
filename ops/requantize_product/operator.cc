// RequantizeProduct: DequantizeProduct's kernel and QuantizeRows' on one row after another.
//
// The floats of a row lie in a thread's scratch, in the cache, from the one to the other: neither
// written to memory nor read from it. Memory traffic is four bytes an element of the sums and one
// written; at 3,072 columns the two nodes by themselves move 13. Rows are blocks of tasks as there,
// and the bits are those of the two nodes.
#include "ops/common/aligned.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/dequantize_product/inputs.h"
#include "ops/quantize_rows/cpu/kernel.h"
#include "ops/quantize_rows/row_blocks.h"

namespace attenuator {
namespace {

using Spec = spec::RequantizeProduct;
using Dequantize = dequantize_product::Kernel;
using Quantize = quantize_rows::Kernel;

class RequantizeProductKernel final : public Kernel {
 public:
  explicit RequantizeProductKernel(const NodeReader& reader) {
    using dequantize_product::Activation;
    const auto activation = static_cast<Activation>(Spec::Read(reader).activation);
    const bool wide = CpuIsa() >= Isa::kAvx512;
    dequantize_ = wide ? dequantize_product::KernelAvx512(activation)
                       : dequantize_product::KernelAvx2(activation);
    quantize_ = wide ? quantize_rows::KernelAvx512() : quantize_rows::KernelAvx2();
  }

  void Run(RunContext& context) const override {
    const auto product = dequantize_product::CheckProduct<Spec>(context);
    const std::int64_t rows = product.rows, columns = product.columns;
    auto* quantized =
        static_cast<std::uint8_t*>(context.Output(Spec::kQuantizedOutput, {rows, columns}));
    auto* scale = static_cast<float*>(context.Output(Spec::kScaleOutput, {rows}));
    quantize_rows::ForRowBlocks(context, rows, columns, [&](std::int64_t begin, std::int64_t end) {
      const AlignedArray<float> values = MakeAligned<float>(columns);
      for (std::int64_t row = begin; row < end; ++row) {
        dequantize_(product, row, row + 1, values.get());
        quantize_(values.get(), 1, columns, quantized + row * columns, scale + row);
      }
    });
  }

 private:
  Dequantize dequantize_;
  Quantize quantize_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<RequantizeProductKernel>(reader);
}

}  // namespace attenuator
