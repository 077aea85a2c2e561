// QuantizeRows: blocks of whole rows as tasks, the same kernel for each (cpu/kernel.inl).
// No row shares anything with another, so neither blocks nor threads nor the rest of the batch
// change a bit of it.
#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/quantize_rows/cpu/kernel.h"
#include "ops/quantize_rows/row_blocks.h"

namespace attenuator {
namespace {

using Spec = spec::QuantizeRows;

class QuantizeRowsKernel final : public Kernel {
 public:
  QuantizeRowsKernel()
      : kernel_(CpuIsa() >= Isa::kAvx512 ? quantize_rows::KernelAvx512()
                                         : quantize_rows::KernelAvx2()) {}

  void Run(RunContext& context) const override {
    const TensorView rows = context.Input(Spec::kRowsInput);
    const std::int64_t count = rows.rows(), columns = rows.columns();
    auto* quantized =
        static_cast<std::uint8_t*>(context.Output(Spec::kQuantizedOutput, {count, columns}));
    auto* scale = static_cast<float*>(context.Output(Spec::kScaleOutput, {count}));
    quantize_rows::ForRowBlocks(context, count, columns, [&](std::int64_t begin, std::int64_t end) {
      kernel_(rows.floats() + begin * columns, end - begin, columns, quantized + begin * columns,
              scale + begin);
    });
  }

 private:
  quantize_rows::Kernel kernel_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader&) {
  return std::make_unique<QuantizeRowsKernel>();
}

}  // namespace attenuator
