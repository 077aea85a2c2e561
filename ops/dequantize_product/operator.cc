// DequantizeProduct: blocks of whole rows as tasks, the same kernel for each (cpu/kernel.inl).
// Scales and bias may be weights or not, and are read where they lie.
#include <stdexcept>
#include <string>

#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/dequantize_product/inputs.h"
#include "ops/quantize_rows/row_blocks.h"

namespace attenuator {
namespace {

using Spec = spec::DequantizeProduct;
using dequantize_product::Product;

class DequantizeProductKernel final : public Kernel {
 public:
  explicit DequantizeProductKernel(const NodeReader& reader) {
    const auto attributes = Spec::Read(reader);
    const auto activation = attributes.activation;
    epsilon_ = attributes.epsilon;
    CheckRange(Spec::kName, "epsilon", epsilon_, Spec::kEpsilonLow, Spec::kEpsilonHigh);
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
    ReadNorm(context, product);
    auto* output = static_cast<float*>(context.Output(Spec::kOutputOutput, {rows, columns}));
    quantize_rows::ForRowBlocks(context, rows, columns, [&](std::int64_t begin, std::int64_t end) {
      kernel_(product, begin, end, output + begin * columns);
    });
  }

 private:
  void ReadNorm(const RunContext& context, Product& product) const {
    const TensorView weight = context.Input(Spec::kNormWeightInput);
    const TensorView bias = context.Input(Spec::kNormBiasInput);
    if (weight.present() != bias.present()) {
      throw std::invalid_argument(
          std::string(Spec::kName) +
          ": norm_weight and norm_bias must be there together or not at all");
    }
    if (!weight.present()) return;
    CheckAxis(Spec::kName, "norm_weight", weight, 0, product.columns, "columns of sums");
    CheckAxis(Spec::kName, "norm_bias", bias, 0, product.columns, "columns of sums");
    product.norm_weight = weight.floats();
    product.norm_bias = bias.floats();
    product.epsilon = epsilon_;
  }

  dequantize_product::Kernel kernel_;
  float epsilon_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<DequantizeProductKernel>(reader);
}

}  // namespace attenuator
