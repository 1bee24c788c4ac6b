#include "evaluate/sealing_probe.h"

#include <algorithm>
#include <chrono>

#include "attention/reference.h"
#include "evaluate/score_error.h"

namespace kvant {
namespace {

// A query head's view of a page: rows [first, kPageTokens) of one KV head.
struct HeadRows {
  const float* key;
  const float* value;
  size_t key_stride, value_stride;
  int key_dim, value_dim;
  int first;
};

// softmax(scale·q·K)·V over the page's rows that the query sees.
std::vector<double> attend_page(const float* q, const HeadRows& rows,
                                const AttentionParams& params) {
  std::vector<double> out(static_cast<size_t>(rows.value_dim));
  const auto first = static_cast<size_t>(rows.first);
  reference_attention({.query = q,
                       .keys = rows.key + first * rows.key_stride,
                       .values = rows.value + first * rows.value_stride,
                       .num_tokens = kPageTokens - rows.first,
                       .key_stride = static_cast<int64_t>(rows.key_stride),
                       .value_stride = static_cast<int64_t>(rows.value_stride),
                       .key_dim = rows.key_dim,
                       .value_dim = rows.value_dim,
                       .scale = double{params.scale},
                       .soft_cap = double{params.soft_cap}},
                      out.data());
  return out;
}

Sums difference(const std::vector<double>& seen, const std::vector<double>& exact) {
  Sums sums;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = seen[i] - exact[i];
    sums += {error * error, exact[i] * exact[i]};
  }
  return sums;
}

}  // namespace

Status SealingProbe::begin_step(std::span<const StepItem> batch) {
  pages_.clear();
  const int64_t sinks = options().sinks / kPageTokens, window = options().exact_window;
  int64_t row = 0;
  std::vector<Page> pages;
  for (const StepItem& item : batch) {
    const Result<int64_t> length = inner().length(item.sequence);
    if (!length.ok()) break;  // begin_step() says it
    const int64_t begin = length.value(), end = begin + item.num_tokens;
    row += item.num_tokens;
    // The pages whose end, or the exact window behind it, lies in the step.
    for (int64_t page = std::max(sinks, (begin - window) / kPageTokens);
         (page + 1) * kPageTokens + window <= end; ++page) {
      if ((page + 1) * kPageTokens + window <= begin) continue;
      pages.push_back(
          {.sequence = item.sequence, .number = page, .row = row - 1, .position = end - 1});
    }
  }
  KVANT_TRY(inner().begin_step(batch));
  for (const Page& page : pages) {
    if (num_sealed_++ % every_ == 0) pages_.push_back(page);
  }
  return {};
}

Status SealingProbe::measure(const Page& page, int layer, const float* q,
                             const AttentionParams& params, AttentionError& error) {
  const CacheLayer& shape = options().layers[static_cast<size_t>(layer)];
  const auto kv_heads = static_cast<size_t>(shape.num_kv_heads);
  const auto key_dim = static_cast<size_t>(shape.key_dim),
             value_dim = static_cast<size_t>(shape.value_dim);
  for (std::vector<float>* keys : {&exact_key_, &key_})
    keys->resize(kPageTokens * kv_heads * key_dim);
  for (std::vector<float>* values : {&exact_value_, &value_})
    values->resize(kPageTokens * kv_heads * value_dim);
  const int64_t start = page.number * kPageTokens;
  const int64_t after = start + kPageTokens + options().exact_window;
  KVANT_TRY(inner().read(page.sequence, layer, start, kPageTokens, start, exact_key_.data(),
                         exact_value_.data()));
  KVANT_TRY(
      inner().read(page.sequence, layer, start, kPageTokens, after, key_.data(), value_.data()));
  const int64_t first_seen = shape.window == 0 ? 0 : page.position - shape.window + 1;
  const int first = static_cast<int>(std::clamp<int64_t>(first_seen - start, 0, kPageTokens));
  if (first == kPageTokens) return not_found("the query doesn't see the page");
  Sums scores, outputs;
  const auto num_heads = static_cast<size_t>(params.num_query_heads);
  for (size_t h = 0; h < num_heads; ++h) {
    const size_t kv_head = h / (num_heads / kv_heads);
    const float* query = q + (static_cast<size_t>(page.row) * num_heads + h) * key_dim;
    const auto rows = [&](const std::vector<float>& k, const std::vector<float>& v) {
      return HeadRows{.key = k.data() + kv_head * key_dim,
                      .value = v.data() + kv_head * value_dim,
                      .key_stride = kv_heads * key_dim,
                      .value_stride = kv_heads * value_dim,
                      .key_dim = shape.key_dim,
                      .value_dim = shape.value_dim,
                      .first = first};
    };
    const auto scores_of = [&](const HeadRows& r) {
      return centred_scores(query, r.key + static_cast<size_t>(first) * r.key_stride, r.key_stride,
                            kPageTokens - first, r.key_dim);
    };
    const HeadRows exact = rows(exact_key_, exact_value_), seen = rows(key_, value_);
    scores += difference(scores_of(seen), scores_of(exact));
    outputs += difference(attend_page(query, seen, params), attend_page(query, exact, params));
  }
  error = {.scores = scores.ratio(), .outputs = outputs.ratio()};
  return {};
}

Status SealingProbe::attend(int layer, const float* q, const AttentionParams& params, float* out,
                            PageMass* mass) {
  KVANT_TRY(inner().attend(layer, q, params, out, mass));
  for (const Page& page : pages_) {
    const auto begin = std::chrono::steady_clock::now();
    SealingError measured = {.layer = layer, .error = {}, .seconds = 0};
    const Status status = measure(page, layer, q, params, measured.error);
    // A sliding layer may have let go of the page.
    if (!status.ok() && status.code() != Code::kNotFound) return status;
    measured.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (status.ok()) report_(measured);
  }
  return {};
}

}  // namespace kvant
