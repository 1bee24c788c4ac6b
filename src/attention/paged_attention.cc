#include "attention/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace kvant {
namespace {

// Queries that go through a page together: enough that unpacking its codes costs little beside the
// arithmetic, few enough that their scores and accumulators (128 · (64 + 2·128) floats) stay in a
// second-level cache.
constexpr int kUnitQueries = 128;

// Spans run side by side where units alone would leave threads without work, and up to this much
// memory of states.
constexpr size_t kUnitsPerThread = 8;
constexpr size_t kMaxSplitFloats = size_t{4} << 20;

// Below this much memory of states, preparing queries and merging spans takes less time than
// handing it to threads: a token or two of decoding.
constexpr size_t kFewSplitFloats = size_t{16} << 10;

constexpr size_t kLineFloats = kAlignment / sizeof(float);

int group_of(const AttentionCall& call) {
  return call.params.num_query_heads / call.layer.num_kv_heads;
}

bool has_coded_values(const LayerFormat& layer) { return !layer.value.codecs.empty(); }

// Records Σ exp(score − max) per page with the max that it is relative to; write_output() knows the
// final one.
class MassRecorder final : public PageObserver {
 public:
  MassRecorder(float* mass, float* max, size_t num_heads, int group, size_t num_pages)
      : mass_(mass), max_(max), num_heads_(num_heads), group_(group), num_pages_(num_pages) {}

  void page_sum(int query, int64_t page, float sum, float max) override {
    const auto row = static_cast<size_t>(query / group_);
    const auto head = static_cast<size_t>(query % group_);
    const size_t at = (row * num_heads_ + head) * num_pages_ + static_cast<size_t>(page);
    mass_[at] = sum;
    max_[at] = max;
  }

 private:
  float* mass_;  // of the unit's first row and head
  float* max_;
  size_t num_heads_;
  int group_;
  size_t num_pages_;
};

}  // namespace

void PagedAttention::cut_into_units(const AttentionCall& call) {
  units_.clear();
  const int rows_of_unit = std::clamp(kUnitQueries / group_of(call), 1, kPageTokens);
  for (const QueryBlock& block : call.blocks) {
    for (int first = 0; first < block.num_rows; first += rows_of_unit) {
      const int64_t position = block.first_position + first;
      const int64_t first_visible =
          call.window == 0 ? 0 : std::max<int64_t>(0, position - call.window + 1);
      const int64_t first_page = std::max(block.first_page, first_visible / kPageTokens);
      for (int head = 0; head < call.layer.num_kv_heads; ++head) {
        units_.push_back({.block = &block,
                          .kv_head = head,
                          .first_row = first,
                          .num_rows = std::min(rows_of_unit, block.num_rows - first),
                          .first_page = first_page,
                          .num_spans = block.own_page() / kSpanPages - first_page / kSpanPages + 1,
                          .memory = 0});
      }
    }
  }
}

PagedAttention::UnitShape PagedAttention::shape_of(const AttentionCall& call,
                                                   const Unit& unit) const {
  const int num_queries = unit.num_rows * group_of(call);
  const LayerFormat& layer = call.layer;
  size_t prepared_bytes = 0;
  if (!layer.key.codecs.empty()) {
    prepared_bytes = layer.key.codecs[static_cast<size_t>(unit.kv_head)]->query_bytes(num_queries);
  }
  const size_t scaled = static_cast<size_t>(num_queries) * static_cast<size_t>(layer.key_dim);
  const size_t state =
      SoftmaxState::num_floats(num_queries, layer.value_dim, has_coded_values(layer));
  return {.scaled_floats = round_up(scaled, kLineFloats),
          .prepared_floats = round_up(prepared_bytes, kAlignment) / sizeof(float),
          .state_floats = round_up(state, kLineFloats)};
}

PagedAttention::UnitMemory PagedAttention::unit_memory(const AttentionCall& call, const Unit& unit,
                                                       float* memory) const {
  const UnitShape shape = shape_of(call, unit);
  return {.scaled = memory,
          .prepared = reinterpret_cast<std::byte*>(memory + shape.scaled_floats),
          .states = memory + shape.scaled_floats + shape.prepared_floats,
          .state_floats = shape.state_floats};
}

size_t PagedAttention::unit_floats(const AttentionCall& call, const Unit& unit,
                                   int64_t num_states) const {
  const UnitShape shape = shape_of(call, unit);
  return shape.scaled_floats + shape.prepared_floats +
         shape.state_floats * static_cast<size_t>(num_states);
}

void PagedAttention::prepare_queries(const AttentionCall& call, const Unit& unit,
                                     const UnitMemory& memory) const {
  const auto dim = static_cast<size_t>(call.layer.key_dim);
  const auto group = static_cast<size_t>(group_of(call));
  const auto num_heads = static_cast<size_t>(call.params.num_query_heads);
  for (size_t r = 0; r < static_cast<size_t>(unit.num_rows); ++r) {
    const size_t row = static_cast<size_t>(unit.block->first_row + unit.first_row) + r;
    const float* from =
        call.q + (row * num_heads + static_cast<size_t>(unit.kv_head) * group) * dim;
    float* to = memory.scaled + r * group * dim;
    for (size_t i = 0; i < group * dim; ++i) to[i] = from[i] * call.params.scale;
  }
  if (call.layer.key.codecs.empty()) return;
  call.layer.key.codecs[static_cast<size_t>(unit.kv_head)]->prepare_query(
      memory.scaled, unit.num_rows * static_cast<int>(group), memory.prepared);
}

PagedAttention::PageRange PagedAttention::pages_of(const Unit& unit, int64_t span) {
  const int64_t number = unit.first_page / kSpanPages + span;
  return {.first = std::max(unit.first_page, number * kSpanPages),
          .end = std::min(unit.block->own_page() + 1, (number + 1) * kSpanPages)};
}

PageBytes PagedAttention::first_bytes(const AttentionCall& call, const Unit& unit, int64_t span) {
  return page_bytes(call.layer, *unit.block, unit.kv_head, pages_of(unit, span).first);
}

void PagedAttention::attend_span(const AttentionCall& call, const Unit& unit,
                                 const UnitMemory& memory, int64_t span, const PageBytes& then,
                                 SoftmaxState& state, float* scores) {
  const int group = group_of(call);
  const PassQueries queries{.layer = call.layer,
                            .kernels = kernels_,
                            .block = *unit.block,
                            .window = call.window,
                            .soft_cap = call.params.soft_cap,
                            .kv_head = unit.kv_head,
                            .group = group,
                            .first_position = unit.block->first_position + unit.first_row,
                            .num_rows = unit.num_rows,
                            .scaled = memory.scaled,
                            .prepared = memory.prepared};
  const auto [first, end] = pages_of(unit, span);
  state.clear();
  if (call.mass == nullptr) {
    pass_over_pages(queries, first, end, then, state, scores, nullptr);
    return;
  }
  const auto num_heads = static_cast<size_t>(call.params.num_query_heads);
  const auto num_pages = static_cast<size_t>(call.mass->num_pages);
  const size_t row = static_cast<size_t>(unit.block->first_row + unit.first_row);
  const size_t at = (row * num_heads + static_cast<size_t>(unit.kv_head * group)) * num_pages;
  MassRecorder recorder(call.mass->mass.data() + at, page_max_.data() + at, num_heads, group,
                        num_pages);
  pass_over_pages(queries, first, end, then, state, scores, &recorder);
}

void PagedAttention::write_output(const AttentionCall& call, const Unit& unit,
                                  SoftmaxState& state) const {
  const auto dim = static_cast<size_t>(call.layer.value_dim);
  const auto group = static_cast<size_t>(group_of(call));
  if (state.acc_coded != nullptr) {
    call.layer.value.codecs[static_cast<size_t>(unit.kv_head)]->finish(state.acc_coded,
                                                                       state.num_queries, dim);
  }
  for (size_t i = 0; i < static_cast<size_t>(state.num_queries); ++i) {
    const size_t row = static_cast<size_t>(unit.block->first_row + unit.first_row) + i / group;
    const size_t head = static_cast<size_t>(unit.kv_head) * group + i % group;
    const size_t query = row * static_cast<size_t>(call.params.num_query_heads) + head;
    float* out = call.out + query * dim;
    const float* exact = state.acc_exact + i * dim;
    const float* coded = state.acc_coded == nullptr ? nullptr : state.acc_coded + i * dim;
    for (size_t c = 0; c < dim; ++c)
      out[c] = (coded == nullptr ? exact[c] : exact[c] + coded[c]) / state.sum[i];
    if (call.mass == nullptr) continue;
    const auto num_pages = static_cast<size_t>(call.mass->num_pages);
    for (size_t j = query * num_pages; j < (query + 1) * num_pages; ++j) {
      if (call.mass->mass[j] != 0)
        call.mass->mass[j] *= std::exp(page_max_[j] - state.max[i]) / state.sum[i];
    }
  }
}

void PagedAttention::run_split(const AttentionCall& call, size_t memory_floats, size_t num_scores) {
  spans_.clear();
  for (size_t u = 0; u < units_.size(); ++u) {
    for (int64_t s = 0; s < units_[u].num_spans; ++s) {
      spans_.emplace_back(static_cast<uint32_t>(u), static_cast<uint32_t>(s));
    }
  }
  const bool coded = has_coded_values(call.layer);
  const auto state_of = [&](const Unit& unit, const UnitMemory& memory, size_t span) {
    return SoftmaxState::at(memory.states + span * memory.state_floats,
                            unit.num_rows * group_of(call), call.layer.value_dim, coded);
  };
  const auto for_all_units = [&](const std::function<void(size_t, int)>& work) {
    if (memory_floats > kFewSplitFloats) return threads_.run(units_.size(), work);
    for (size_t u = 0; u < units_.size(); ++u) work(u, 0);
  };
  for_all_units([&](size_t u, int) {
    prepare_queries(call, units_[u],
                    unit_memory(call, units_[u], memory_.data() + units_[u].memory));
  });
  threads_.run(spans_.size(), [&](size_t i, int worker) {
    const Unit& unit = units_[spans_[i].first];
    const UnitMemory memory = unit_memory(call, unit, memory_.data() + unit.memory);
    SoftmaxState state = state_of(unit, memory, spans_[i].second);
    // Threads take spans in turn, so this one's next is as many further on as there are threads.
    const size_t next = i + static_cast<size_t>(threads_.num_threads());
    const PageBytes then = next < spans_.size() ? first_bytes(call, units_[spans_[next].first],
                                                              int64_t{spans_[next].second})
                                                : PageBytes{};
    attend_span(call, unit, memory, spans_[i].second, then, state,
                scores_.data() + static_cast<size_t>(worker) * num_scores);
  });
  for_all_units([&](size_t u, int) {
    const Unit& unit = units_[u];
    const UnitMemory memory = unit_memory(call, unit, memory_.data() + unit.memory);
    SoftmaxState total = state_of(unit, memory, 0);
    for (int64_t s = 1; s < unit.num_spans; ++s) {
      total.merge(state_of(unit, memory, static_cast<size_t>(s)), kernels_);
    }
    write_output(call, unit, total);
  });
}

void PagedAttention::run_in_turn(const AttentionCall& call, size_t num_scores) {
  size_t floats = 0;
  for (const Unit& unit : units_) floats = std::max(floats, unit_floats(call, unit, 2));
  memory_.reserve_discarding(floats * static_cast<size_t>(threads_.num_threads()));
  const bool coded = has_coded_values(call.layer);
  threads_.run(units_.size(), [&](size_t u, int worker) {
    const Unit& unit = units_[u];
    const int num_queries = unit.num_rows * group_of(call);
    const UnitMemory memory =
        unit_memory(call, unit, memory_.data() + static_cast<size_t>(worker) * floats);
    SoftmaxState total = SoftmaxState::at(memory.states, num_queries, call.layer.value_dim, coded);
    SoftmaxState part = SoftmaxState::at(memory.states + memory.state_floats, num_queries,
                                         call.layer.value_dim, coded);
    float* scores = scores_.data() + static_cast<size_t>(worker) * num_scores;
    prepare_queries(call, unit, memory);
    for (int64_t s = 0; s < unit.num_spans; ++s) {
      const PageBytes then = s + 1 < unit.num_spans ? first_bytes(call, unit, s + 1) : PageBytes{};
      attend_span(call, unit, memory, s, then, s == 0 ? total : part, scores);
      if (s > 0) total.merge(part, kernels_);
    }
    write_output(call, unit, total);
  });
}

void PagedAttention::run(const AttentionCall& call) {
  cut_into_units(call);
  if (call.mass != nullptr) page_max_.resize(call.mass->mass.size());
  size_t split_floats = 0, num_scores = 0;
  int64_t most_spans = 0;
  for (Unit& unit : units_) {
    unit.memory = split_floats;
    split_floats += unit_floats(call, unit, unit.num_spans);
    num_scores =
        std::max(num_scores, static_cast<size_t>(unit.num_rows * group_of(call)) * kPageTokens);
    most_spans = std::max(most_spans, unit.num_spans);
  }
  scores_.reserve_discarding(num_scores * static_cast<size_t>(threads_.num_threads()));
  const bool few_units =
      units_.size() < kUnitsPerThread * static_cast<size_t>(threads_.num_threads());
  if (most_spans > 1 && few_units && split_floats <= kMaxSplitFloats) {
    memory_.reserve_discarding(split_floats);
    run_split(call, split_floats, num_scores);
  } else {
    run_in_turn(call, num_scores);
  }
}

uint64_t PagedAttention::workspace_bytes() const {
  return (memory_.size() + scores_.size() + page_max_.capacity()) * sizeof(float) +
         units_.capacity() * sizeof(Unit) + spans_.capacity() * sizeof(spans_[0]);
}

}  // namespace kvant
