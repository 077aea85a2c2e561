// DequantizeProduct: blocks of whole rows as tasks, the same kernel for each (cpu/kernel.inl).
//
// A block has about 32 Ki elements: it takes some ten microseconds, which is what handing it to
// another thread is worth. Scales and bias may be weights or not, and are read where they lie.
#include <algorithm>

#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/dequantize_product/inputs.h"

namespace attenuator {
namespace {

using Spec = spec::DequantizeProduct;
using dequantize_product::Product;

constexpr std::int64_t kBlockElements = 1 << 15;

class DequantizeProductKernel final : public Kernel {
 public:
  explicit DequantizeProductKernel(const NodeReader& reader) {
    const auto activation = Spec::Read(reader).activation;
    kernel_ = CpuIsa() >= Isa::kAvx512 ? dequantize_product::KernelAvx512(activation)
                                       : dequantize_product::KernelAvx2(activation);
  }

  void Run(RunContext& context) const override {
    Product product = dequantize_product::CheckProduct<Spec>(context);
    const std::int64_t rows = product.rows, columns = product.columns;
    const TensorView residual = context.Input(Spec::kResidualInput);
    if (residual.present()) {
      CheckAxis(Spec::kName, "residual", residual, 0, rows, "rows of sums");
      CheckAxis(Spec::kName, "residual", residual, 1, columns, "columns of sums");
      product.residual = residual.floats();
    }
    auto* output = static_cast<float*>(context.Output(Spec::kOutputOutput, {rows, columns}));
    const std::int64_t block =
        std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, columns));
    context.threads().For((rows + block - 1) / block, [&](std::int64_t task) {
      const std::int64_t begin = task * block;
      kernel_(product, begin, std::min(rows, begin + block), output + begin * columns);
    });
  }

 private:
  dequantize_product::Kernel kernel_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<DequantizeProductKernel>(reader);
}

}  // namespace attenuator
