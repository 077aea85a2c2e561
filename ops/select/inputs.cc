#include "ops/select/inputs.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace attenuator::select {

using Spec = spec::TokenSelect;

Inputs CheckInputs(const TensorContext& context) {
  Inputs inputs{};
  inputs.rows = context.Input(Spec::kRowsInput);
  inputs.importance = context.Input(Spec::kImportanceInput);
  inputs.sequences =
      CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), inputs.rows.rows());
  CheckAxis(Spec::kName, "importance", inputs.importance, 0, inputs.rows.rows(), "rows of rows");
  const TensorView kept = context.Input(Spec::kKeptCuSeqlensInput);
  CheckAxis(Spec::kName, "kept_cu_seqlens", kept, 0, inputs.sequences.batch + 1,
            "as cu_seqlens has");
  inputs.kept = CheckOffsets(Spec::kName, "kept_cu_seqlens", kept);
  const TensorView unmerged = context.Input(Spec::kUnmergedCuSeqlensInput);
  inputs.unmerged = CheckUnmerged(Spec::kName, unmerged, inputs.sequences);
  inputs.merges = unmerged.present();
  for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
    const std::int64_t length = inputs.sequences.length(b), count = inputs.kept.length(b);
    // The first row is kept, and a mean takes a row more.
    const std::int64_t low = std::min<std::int64_t>(length, inputs.merges ? 2 : 1);
    if (count < low || count > length) {
      const std::string next = std::to_string(b + 1), own = std::to_string(b);
      Fail(Spec::kName, "kept_cu_seqlens[" + next + "] - kept_cu_seqlens[" + own + "] is " +
                            std::to_string(count) + ", must be in [" + std::to_string(low) + ", " +
                            std::to_string(length) + "], since sequence " + own + " has " +
                            std::to_string(length) + (length == 1 ? " row" : " rows"));
    }
  }
  return inputs;
}

}  // namespace attenuator::select
