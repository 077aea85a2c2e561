#include "ops/relative/inputs.h"

#include <algorithm>
#include <string>

#include "ops/common/attention/attention.h"
#include "ops/common/attention/importance.h"

namespace attenuator::relative {
namespace {

using Spec = spec::RelativeAttention;

// Places of a table's products, 64 to a row, stay within 32 bits.
constexpr std::int64_t kMostRows = std::int64_t{1} << 24;
// Distances stay within 32 bits.
constexpr std::int64_t kMostBuckets = std::int64_t{1} << 30;

// Returns R, the number of rows of every table.
std::int64_t CheckTables(const Inputs& inputs, std::int64_t heads) {
  std::int64_t rows = -1;
  const struct {
    const char* name;
    const TensorView& view;
    std::int64_t columns;
    const char* because;
  } tables[] = {
      {"pos_key", inputs.pos_key, inputs.key.columns(), "the number of columns of key"},
      {"pos_query", inputs.pos_query, inputs.key.columns(), "the number of columns of key"},
      {"bias", inputs.bias, heads, "num_heads"}};
  for (const auto& [name, view, columns, because] : tables) {
    if (!view.present()) continue;
    if (rows < 0) rows = view.rows();
    CheckAxis(Spec::kName, name, view, 0, rows, "the number of rows of the other tables");
    CheckAxis(Spec::kName, name, view, 1, columns, because);
  }
  if (rows < 0) return 0;
  if (rows == 0 || rows > kMostRows) {
    Fail(Spec::kName, "pos_key, pos_query or bias has " + std::to_string(rows) +
                          " rows, must have 1 to " + std::to_string(kMostRows));
  }
  return rows;
}

void CheckBuckets(const TensorView& buckets) {
  if (!buckets.present()) {
    Fail(Spec::kName, "input buckets is missing, must be passed with pos_key, pos_query or bias");
  }
  const std::string size = "buckets has size " + std::to_string(buckets.rows());
  if (buckets.rows() % 2 == 0) Fail(Spec::kName, size + ", must be odd");
  if (buckets.rows() > kMostBuckets) {
    Fail(Spec::kName, size + ", must be at most " + std::to_string(kMostBuckets));
  }
}

}  // namespace

void CheckAttributes(const Spec::Attributes& attributes) {
  CheckFinite(Spec::kName, "scale", attributes.scale);
}

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{};
  inputs.query = context.Input(Spec::kQueryInput);
  inputs.key = context.Input(Spec::kKeyInput);
  inputs.value = context.Input(Spec::kValueInput);
  inputs.buckets = context.Input(Spec::kBucketsInput);
  inputs.pos_key = context.Input(Spec::kPosKeyInput);
  inputs.pos_query = context.Input(Spec::kPosQueryInput);
  inputs.bias = context.Input(Spec::kBiasInput);
  inputs.positions = context.Input(Spec::kPositionsInput);
  inputs.first = attributes.queries == Spec::Queries::kFirst;
  const std::int64_t rows = inputs.key.rows(), heads = attributes.num_heads;
  inputs.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), rows);
  CheckQuery(Spec::kName, inputs.query, inputs.key, inputs.sequences.batch, inputs.first);
  CheckAxis(Spec::kName, "value", inputs.value, 0, rows, "the number of rows of key");
  inputs.head_dim = CheckHeadDim(Spec::kName, "key", inputs.key, heads);
  inputs.value_dim = CheckHeadDim(Spec::kName, "value", inputs.value, heads);
  inputs.table_rows = CheckTables(inputs, heads);
  if (inputs.has_tables()) CheckBuckets(inputs.buckets);
  if (inputs.positions.present()) {
    CheckAxis(Spec::kName, "positions", inputs.positions, 0, rows, "the number of rows of key");
  }
  inputs.unmerged =
      CheckUnmerged(Spec::kName, context.Input(Spec::kUnmergedCuSeqlensInput), inputs.sequences);
  inputs.scale = attention::ScoreScale(attributes.scale, inputs.head_dim);
  return inputs;
}

void CheckValues(const Inputs& inputs) {
  for (std::int64_t i = 0; inputs.has_tables() && i < inputs.buckets.rows(); ++i) {
    const std::int64_t row = inputs.buckets.int64s()[i];
    if (row >= 0 && row < inputs.table_rows) continue;
    Fail(Spec::kName, "buckets[" + std::to_string(i) + "] is " + std::to_string(row) +
                          ", must be in [0, " + std::to_string(inputs.table_rows - 1) + "]");
  }
  attention::CheckPositions(Spec::kName, inputs.positions, inputs.sequences);
}

}  // namespace attenuator::relative
