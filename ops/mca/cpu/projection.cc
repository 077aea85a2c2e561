// Which tokens of a head are projected exactly and which are not, and the tasks that do either.
//
// Layout: W_a is [C, padded], so that a sampled column k of a row x is one scalar x_k times one
// contiguous row of W_a; `scaled` holds the same rows divided by p_k, as sampling needs them.
// Values are [length, padded]; a task owns the rows of its tokens.
//
// `sampled` draws one u_k for each column, the same for all tokens of the head: token j keeps the
// columns with u_k <= r_j p_k. Tokens are sorted by falling r, so that the columns of each are a
// subset of those of the token before, and a list of candidates only shrinks along a task. Groups
// of kSampleGroup tokens take the columns, and the r, of their largest: a row of W_a is fetched
// once for the group, and no token gets fewer columns than its own r asks for. `paper` draws r_j
// columns with replacement for each token alone. `deterministic` copies the mean row's value.
//
// Numerics: products and sums are float32, in the order of columns; what is planned (r, bounds) is
// float64. Groups and tasks follow from the sequence's own maxima alone, and a draw from seed,
// layer and head: neither neighbours in the batch nor threads change a bit.
#include "ops/mca/cpu/projection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/common/philox.h"

namespace attenuator::mca {
namespace {

// Tokens of one task, a multiple of kSampleGroup.
constexpr std::int64_t kTaskTokens = 32 * kSampleGroup;

// From this r on a token is exact.
std::int32_t SampleLimit(const Weights& weights, Estimator estimator) {
  const double channels = static_cast<double>(weights.channels);
  return static_cast<std::int32_t>(
      estimator == Estimator::kPaper ? channels : std::ceil(channels * kBreakEven));
}

struct Samples {
  double tokens = 0;   // that are sampled
  double columns = 0;  // r of all of them
};

// r_j = ceil((n max_i A_ij / alpha)^2), 0 where exact: README.md, section 2. `factor` is n / alpha.
// Without branches on the data, which would be mispredicted at every change from sampled to exact.
Samples CountSamples(std::int32_t limit, double factor, const float* maxima, std::int64_t tokens,
                     std::int32_t* r) {
  Samples samples;
  for (std::int64_t j = 0; j < tokens; ++j) {
    const double root = factor * maxima[j];
    const double square = root * root;
    const double clipped = square < limit ? square : limit;  // limit for NaN
    const std::int32_t below = static_cast<std::int32_t>(clipped);
    const std::int32_t up = std::max(1, below + (below < clipped ? 1 : 0));
    r[j] = up < limit ? up : 0;
    samples.columns += r[j];
    samples.tokens += up < limit ? 1 : 0;
  }
  return samples;
}

// Whether `deterministic` may replace a token: compares its error with its share of the bound.
struct Replacing {
  double allowed, factor;

  Replacing(const Weights& weights, std::int64_t head, const SequenceRows& rows)
      : allowed(rows.alpha * (1 - kRoundingMargin) * rows.beta * weights.frobenius[head]),
        factor(rows.keys * weights.spectral[head]) {}
  bool operator()(double maximum, float distance) const {
    return factor * maximum * distance <= allowed;
  }
};

}  // namespace

bool ProbePays(const Weights& weights, std::int64_t head, Estimator estimator,
               const SequenceRows& rows, const float* maxima) {
  const Probe& probe = rows.probe;
  if (probe.rows == 0) return true;
  if (!weights.approximable[head]) return false;
  const double channels = static_cast<double>(weights.channels);
  const double overhead = rows.overhead + rows.maxima_cost;
  maxima += probe.first_token;
  double sum = 0;
  for (std::int64_t j = 0; j < probe.tokens; ++j) sum += maxima[j];
  const double growth = Growth(probe, rows.keys, sum);
  // The tokens that the probe does not look at are taken to be like those it does.
  const double share = static_cast<double>(rows.length) / static_cast<double>(probe.tokens);
  if (estimator == Estimator::kDeterministic) {
    const Replacing replaces(weights, head, rows);
    double tokens = 0;
    for (std::int64_t j = 0; j < probe.tokens; ++j) {
      tokens += replaces(growth * maxima[j], rows.distances[probe.first_token + j]) ? 1 : 0;
    }
    return WorthReplacing(share * tokens, channels, overhead);
  }
  std::vector<std::int32_t> r(probe.tokens);
  const Samples samples =
      CountSamples(SampleLimit(weights, estimator), rows.keys / rows.alpha * growth, maxima,
                   probe.tokens, r.data());
  return WorthSampling(share * samples.tokens, share * samples.columns, channels, weights.padded,
                       overhead);
}

HeadProjection::HeadProjection(const Weights& weights, std::int64_t head, std::uint32_t layer,
                               Estimator estimator, const SequenceRows& rows, const float* maxima,
                               const float* bias, float* values)
    : weights_(weights),
      head_(head),
      layer_(layer),
      estimator_(estimator),
      rows_(rows),
      packed_(weights.head(head)),
      bias_(bias),
      values_(values) {
  if (!weights.approximable[head]) {
    KeepAllExact();
  } else if (estimator == Estimator::kDeterministic) {
    PlanDeterministic(maxima);
  } else {
    PlanSamples(maxima);
  }
  if (!approximated_.empty()) {
    base_.assign(bias, bias + packed_.padded);
    if (rows.centred && estimator != Estimator::kPaper) ProjectCentre();
    if (estimator == Estimator::kSampled) DrawCandidates();
  }
  const auto tasks = [](std::size_t tokens) {
    return (static_cast<std::int64_t>(tokens) + kTaskTokens - 1) / kTaskTokens;
  };
  exact_tasks_ = tasks(exact_.size() - exact_begin_);
  columns_.assign(exact_tasks_ + tasks(approximated_.size()), 0.0);
}

// One row alone is bound by reading the weight; exact tokens ride along for almost nothing.
void HeadProjection::ProjectCentre() {
  const std::int64_t channels = weights_.channels;
  const float* rows[kSampleGroup] = {rows_.centre};
  float* out[kSampleGroup] = {base_.data()};
  const std::int64_t guests = std::min<std::int64_t>(kSampleGroup - 1, exact_.size());
  for (std::int64_t i = 0; i < guests; ++i) {
    rows[i + 1] = rows_.hidden + exact_[i] * channels;
    out[i + 1] = values_ + exact_[i] * packed_.padded;
  }
  Projection().exact(rows, guests + 1, channels, packed_, bias_, out);
  exact_begin_ = guests;
  centre_columns_ = static_cast<double>((guests + 1) * channels);
}

void HeadProjection::KeepAllExact() {
  approximated_.clear();
  r_.clear();
  exact_.resize(rows_.length);
  for (std::int64_t j = 0; j < rows_.length; ++j) exact_[j] = static_cast<std::int32_t>(j);
}

void HeadProjection::PlanSamples(const float* maxima) {
  std::vector<std::int32_t> r(rows_.length);
  const std::int32_t limit = SampleLimit(weights_, estimator_);
  const Samples samples =
      CountSamples(limit, rows_.keys / rows_.alpha, maxima, rows_.length, r.data());
  const double channels = static_cast<double>(weights_.channels);
  const bool worth = estimator_ == Estimator::kPaper
                         ? samples.tokens * channels - samples.columns >= rows_.overhead
                         : WorthSampling(samples.tokens, samples.columns, channels, weights_.padded,
                                         rows_.overhead);
  if (!worth) return KeepAllExact();
  Sort(r, limit - 1);
}

// Counting sort by falling r; equal ones stay in token order, exact tokens (r = 0) come last.
void HeadProjection::Sort(const std::vector<std::int32_t>& r, std::int32_t highest) {
  std::vector<std::int32_t> place(highest + 1, 0);  // first, how many tokens have this r
  for (const std::int32_t x : r) ++place[x];
  std::int32_t above = 0;
  for (std::int32_t x = highest; x >= 0; --x) {
    const std::int32_t count = place[x];
    place[x] = above;
    above += count;
  }
  const std::int64_t sampled = place[0];
  approximated_.resize(r.size());
  for (std::size_t j = 0; j < r.size(); ++j) {
    approximated_[place[r[j]]++] = static_cast<std::int32_t>(j);
  }
  exact_.assign(approximated_.begin() + sampled, approximated_.end());
  approximated_.resize(sampled);
  r_.resize(sampled);
  for (std::int64_t i = 0; i < sampled; ++i) r_[i] = r[approximated_[i]];
}

// A token is replaced by the mean row where its share of the bound allows it.
void HeadProjection::PlanDeterministic(const float* maxima) {
  const Replacing replaces(weights_, head_, rows_);
  for (std::int64_t j = 0; j < rows_.length; ++j) {
    (replaces(maxima[j], rows_.distances[j]) ? approximated_ : exact_)
        .push_back(static_cast<std::int32_t>(j));
  }
  const double tokens = static_cast<double>(approximated_.size());
  if (!WorthReplacing(tokens, static_cast<double>(weights_.channels), rows_.overhead)) {
    KeepAllExact();
  }
}

// Draws u_k for every column; reach_k = u_k / p_k, so that u_k <= r p_k where reach_k <= r.
void HeadProjection::DrawCandidates() {
  const std::int64_t channels = weights_.channels;
  const float* inverse_p = weights_.inverse_p.get() + head_ * channels;
  candidates_.resize(channels);
  std::iota(candidates_.begin(), candidates_.end(), 0);
  reach_.resize(channels + kDrawPad);
  inverse_p_.assign(inverse_p, inverse_p + channels);
  Projection().draw(rows_.seed, layer_, static_cast<std::uint32_t>(head_), channels, inverse_p,
                    reach_.data());
  const std::int64_t kept = Projection().narrow(
      static_cast<float>(r_[0]), channels, candidates_.data(), reach_.data(), inverse_p_.data());
  candidates_.resize(kept);
  reach_.resize(kept);
  inverse_p_.resize(kept);
}

void HeadProjection::Run(std::int64_t task) {
  const bool exact = task < exact_tasks_;
  const std::int64_t tokens = static_cast<std::int64_t>((exact ? exact_ : approximated_).size());
  const std::int64_t begin =
      exact ? exact_begin_ + task * kTaskTokens : (task - exact_tasks_) * kTaskTokens;
  const std::int64_t end = std::min(tokens, begin + kTaskTokens);
  if (exact) {
    columns_[task] = RunExact(begin, end);
  } else if (estimator_ == Estimator::kSampled) {
    columns_[task] = RunSampled(begin, end);
  } else if (estimator_ == Estimator::kPaper) {
    columns_[task] = RunPaper(begin, end);
  } else {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(values_ + approximated_[i] * packed_.padded, base_.data(),
                  sizeof(float) * packed_.padded);
    }
  }
}

double HeadProjection::columns() const {
  double sum = centre_columns_;
  for (const double columns : columns_) sum += columns;
  return sum;
}

double HeadProjection::RunExact(std::int64_t begin, std::int64_t end) const {
  const float* rows[kTaskTokens];
  float* out[kTaskTokens];
  for (std::int64_t i = begin; i < end; ++i) {
    rows[i - begin] = rows_.hidden + exact_[i] * weights_.channels;
    out[i - begin] = values_ + exact_[i] * packed_.padded;
  }
  Projection().exact(rows, end - begin, weights_.channels, packed_, bias_, out);
  return static_cast<double>((end - begin) * weights_.channels);
}

double HeadProjection::RunSampled(std::int64_t begin, std::int64_t end) const {
  std::vector<std::int32_t> candidates = candidates_;
  std::vector<float> reach = reach_, inverse_p = inverse_p_;
  std::vector<std::int32_t> certain, partial;
  if (weights_.min_inverse_p[head_] <= static_cast<float>(r_[begin])) {
    certain.resize(candidates.size());
    partial.resize(candidates.size());
  }
  std::int64_t kept = static_cast<std::int64_t>(candidates.size());
  double columns = 0;
  for (std::int64_t i = begin; i < end; i += kSampleGroup) {
    const int count = static_cast<int>(std::min<std::int64_t>(kSampleGroup, end - i));
    const float r = static_cast<float>(r_[i]);  // the largest of the group
    kept = Projection().narrow(r, kept, candidates.data(), reach.data(), inverse_p.data());
    SampledColumns list{nullptr, 0, candidates.data(), kept, r};
    if (weights_.min_inverse_p[head_] <= r) {
      const std::int64_t sure = Projection().part(r, kept, candidates.data(), inverse_p.data(),
                                                  certain.data(), partial.data());
      list = {certain.data(), sure, partial.data(), kept - sure, r};
    }
    const float* rows[kSampleGroup];
    float* out[kSampleGroup];
    for (int t = 0; t < count; ++t) {
      rows[t] = rows_.hidden + approximated_[i + t] * weights_.channels;
      out[t] = values_ + approximated_[i + t] * packed_.padded;
    }
    Projection().sampled(rows, count, list, rows_.centre, packed_, base_.data(), out);
    columns += static_cast<double>(count * kept);
  }
  return columns;
}

// Section 3.1 of the paper as written: r_j columns with replacement, each token its own.
double HeadProjection::RunPaper(std::int64_t begin, std::int64_t end) const {
  const std::int64_t channels = weights_.channels;
  const std::uint64_t* cdf = weights_.cdf.data() + head_ * channels;
  const std::int32_t* guide = weights_.guide.data() + head_ * kGuideSize;
  const std::vector<float> zeros(channels, 0.0f);
  std::vector<std::int32_t> list;
  double columns = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t token = approximated_[i];
    const std::int64_t r = r_[i];
    const std::uint64_t first_block = static_cast<std::uint64_t>(token * ((channels + 1) / 2));
    list.resize(r);
    PhiloxWords words{};
    for (std::int64_t t = 0; t < r; ++t) {
      if (t % 2 == 0) {
        words = StreamBlock(rows_.seed, layer_, static_cast<std::uint32_t>(head_),
                            Stream::kMcaPaper, first_block + static_cast<std::uint64_t>(t / 2));
      }
      // The guide leads to within a step or two; a binary search would mispredict ten branches.
      const std::uint64_t u = DrawOf(words, t % 2);
      std::int32_t k = guide[u >> kGuideShift];
      while (cdf[k] <= u) ++k;
      list[t] = k;
    }
    const SampledColumns sampled{nullptr, 0, list.data(), r, static_cast<float>(r)};
    const float* row = rows_.hidden + token * channels;
    float* out = values_ + token * packed_.padded;
    Projection().sampled(&row, 1, sampled, zeros.data(), packed_, bias_, &out);
    columns += static_cast<double>(r);
  }
  return columns;
}

}  // namespace attenuator::mca
