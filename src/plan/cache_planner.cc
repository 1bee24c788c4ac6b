// CachePlanner: a model's layers in groups, and the bytes of their pages. Sizes of pages come from
// the codecs and counts of pages from the read rule, as the pool's do; this file only multiplies.
#include <algorithm>

#include "attention/bound_layers.h"
#include "cache/read_rule.h"
#include "kvant/plan.h"
#include "plan/group_rule.h"

namespace kvant {
namespace {

constexpr int64_t kMaxSequences = int64_t{1} << 40;

// Wide enough for every product of checked factors: pages · sequences · layers · heads · bytes.
__extension__ typedef unsigned __int128 Wide;

// So that a difference of two sizes has a sign.
constexpr Wide kMaxBytes = Wide{1} << 62;

Wide wide(int64_t count) { return static_cast<Wide>(std::max<int64_t>(count, 0)); }

Status check_count(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(std::string(what) + ": " + std::to_string(value) + ", wanted " +
                          std::to_string(low) + " to " + std::to_string(high));
}

Result<uint64_t> narrow(Wide bytes) {
  if (bytes <= kMaxBytes) return static_cast<uint64_t>(bytes);
  return exhausted("the cache takes more than 2^62 bytes");
}

// A stream as the cache's options name it: without V of its own, V is all of K.
CacheLayer cache_layer(const CacheStream& stream, const FormatPair& formats) {
  CacheLayer layer;
  layer.num_kv_heads = stream.heads;
  layer.key_dim = stream.k_dim;
  layer.value_dim = stream.v_dim == 0 ? stream.k_dim : stream.v_dim;
  layer.value_source = stream.v_dim == 0 ? ValueSource::kKeyRange : ValueSource::kOwnStream;
  layer.window = static_cast<int>(stream.window);
  layer.formats = formats;
  return layer;
}

LayerShape resolver_shape(const ModelLayer& layer) {
  if (layer.shares >= 0 || layer.streams.empty()) return {};
  const CacheStream& main = layer.streams.front();
  return {.num_kv_heads = main.heads,
          .key_dim = main.k_dim,
          .value_dim = main.v_dim,
          .window = static_cast<int>(main.window),
          .quantizable = main.quantizable()};
}

// The registry's formats for their sizes: those that need a calibration get one that means nothing.
const FormatSource& sized_formats() {
  static const FormatSource kSized = {
      .find = find_format, .bind = [](const FormatInfo& format, const CodecBinding& binding) {
        const bool any = format.needs.artifacts || format.scale_source == ScaleSource::kGiven;
        return any ? bind_any(format, binding.side, binding.dim) : bind_codec(format, binding);
      }};
  return kSized;
}

// A layer whose stream no format can take: what is left of it when a quantized one is asked for.
const FormatPair kExact = {"bf16", "bf16"};

int64_t shared_pages(const CacheStream& stream, const SequenceSet& set) {
  if (stream.kind == StreamKind::kCross) return 0;
  return std::min(set.shared_prefix, set.tokens) / stream.tokens_per_entry / kPageTokens;
}

Status check_set(const SequenceSet& set) {
  KVANT_TRY(check_count("tokens", set.tokens, 0, kMaxSequenceTokens));
  KVANT_TRY(check_count("sequences", set.sequences, 1, kMaxSequences));
  KVANT_TRY(check_count("the shared prefix", set.shared_prefix, 0, kMaxSequenceTokens));
  return check_count("source tokens", set.source_tokens, 0, kMaxSequenceTokens);
}

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Those of `all` that aren't `shared`.
PageCounts beside(PageCounts all, PageCounts shared) {
  return {.sealed = std::max<int64_t>(0, all.sealed - shared.sealed),
          .exact = std::max<int64_t>(0, all.exact - shared.exact)};
}

// Of `prefix` pages at the start, those that a sequence on its way to `length` tokens always
// shares: its last page is its own until the next begins. As they are at length, so that what is
// needed never falls while a sequence grows. Of a window nothing is counted on: the prefix slides
// out of it.
PageCounts counted_on(const ReadRule& rule, int64_t length, int64_t prefix) {
  return held_pages(rule, kMaxSequenceTokens,
                    std::min(prefix, page_of(std::max<int64_t>(1, length) - 1)));
}

// Pages of one device where `ranks` of them share a sequence's pages.
PageCounts deal(PageCounts pages, int ranks) {
  return {.sealed = divide_up(pages.sealed, ranks), .exact = divide_up(pages.exact, ranks)};
}

void add_state(const ConstantState& state, int layer, std::vector<StateGroup>& groups) {
  auto group = std::find_if(groups.begin(), groups.end(),
                            [&](const StateGroup& g) { return g.state == state; });
  if (group == groups.end()) group = groups.insert(group, {.state = state, .layers = {}});
  group->layers.push_back(layer);
}

PageParts page_parts(const PartBytes& parts) {
  return {.key = parts.key, .value = parts.value, .before_rope = parts.pre_rope};
}

HeldPages held(PageCounts pages) { return {.sealed = pages.sealed, .exact = pages.exact}; }

Wide page_bytes(const PlannedGroup& group, const HeldPages& pages) {
  return wide(pages.sealed) * group.sealed_page + wide(pages.exact) * group.exact_page;
}

// The greatest value in [0, limit] for which `fits` holds; `fits` holds up to a point and not
// beyond, and for 0.
template <typename Fits>
Result<int64_t> greatest(int64_t limit, const Fits& fits) {
  int64_t low = 0, high = limit;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    KVANT_ASSIGN(const bool ok, fits(middle));
    if (ok) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace

std::string_view stream_kind_name(StreamKind kind) {
  constexpr std::string_view kNames[] = {"full",       "sliding", "chunked", "latent",
                                         "compressed", "indexer", "cross"};
  return kNames[static_cast<size_t>(kind)];
}

Result<ResolvedFormats> resolve_model_formats(const ModelShape& shape, std::string_view kv,
                                              std::string_view kv_layers, bool strict) {
  std::vector<LayerShape> shapes;
  for (const ModelLayer& layer : shape.layers) shapes.push_back(resolver_shape(layer));
  for (size_t l = 0; l < std::min(shapes.size(), shape.calibrated.size()); ++l)
    shapes[l].calibrated = shape.calibrated[l];
  return resolve_formats(kv, kv_layers, shapes, shape.traits, strict);
}

Result<CachePlanner> CachePlanner::create(const ModelShape& shape,
                                          std::span<const FormatPair> formats,
                                          const PlanOptions& options) {
  KVANT_TRY(check_count("context ranks", options.context_ranks, 1, 1 << 16));
  KVANT_TRY(check_count("the tokens of a step", options.step_tokens, 1, kMaxSequenceTokens));
  if (formats.size() != shape.layers.size()) {
    return invalid_argument("formats for " + std::to_string(formats.size()) + " layers, wanted " +
                            std::to_string(shape.layers.size()));
  }
  CachePlanner planner;
  planner.options_ = options;
  for (size_t l = 0; l < shape.layers.size(); ++l) {
    const ModelLayer& layer = shape.layers[l];
    if (!layer.state.is_empty()) add_state(layer.state, static_cast<int>(l), planner.states_);
    if (layer.shares >= 0) continue;
    for (size_t s = 0; s < layer.streams.size(); ++s) {
      const CacheStream& stream = layer.streams[s];
      const FormatPair& pair = s == 0 || stream.quantizable() ? formats[l] : kExact;
      const auto same = [&](const PlannedGroup& g) {
        return g.stream == stream && g.formats == pair;
      };
      auto group = std::find_if(planner.groups_.begin(), planner.groups_.end(), same);
      if (group == planner.groups_.end()) {
        group = planner.groups_.emplace(group);
        group->stream = stream;
        group->formats = pair;
        group->slides =
            stream.window > 0 && (shape.max_positions == 0 || stream.window < shape.max_positions);
      }
      group->layers.push_back(static_cast<int>(l));
    }
  }
  for (PlannedGroup& group : planner.groups_) {
    const auto layout = layout_group(cache_layer(group.stream, group.formats),
                                     static_cast<int>(group.layers.size()), options.sinks,
                                     options.exact_window, sized_formats());
    if (!layout.ok())
      return layout.status().with_context("layer " + std::to_string(group.layers.front()));
    group.seals = layout->rule.seals;
    group.exact_page = layout->exact_slab_bytes();
    group.sealed_page = layout->sealed_slab_bytes();
    group.exact_parts = page_parts(layout->exact);
    group.sealed_parts = page_parts(layout->sealed);
    const PartBytes& stored = layout->rule.seals ? layout->sealed : layout->exact;
    group.key_bits =
        static_cast<double>(stored.key) * 8 / (double{kPageTokens} * group.stream.k_dim);
    group.value_bits = group.stream.v_dim == 0 ? 0
                                               : static_cast<double>(stored.value) * 8 /
                                                     (double{kPageTokens} * group.stream.v_dim);
  }
  return planner;
}

GroupPages CachePlanner::pages(const PlannedGroup& group, const SequenceSet& set) const {
  const ReadRule rule = rule_of(group, options_);
  const int ranks = options_.context_ranks;
  const int64_t length = entries(group.stream, set);
  const int64_t prefix = shared_pages(group.stream, set);
  const int64_t counted_prefix = rule.window == 0 ? prefix : 0;
  const PageCounts all = held_pages(rule, length);
  const PageCounts own = beside(all, held_pages(rule, length, prefix));
  const PageCounts growing =
      beside(peak_pages(rule, length, 1), counted_on(rule, length, counted_prefix));
  const int64_t seen = visible_tokens(rule, length);
  return {.first = held(deal(all, ranks)),
          .further = held(deal(own, ranks)),
          .filling = held(deal(peak_pages(rule, length, options_.step_tokens), ranks)),
          .growing = held(deal(growing, ranks)),
          .seen = seen,
          .further_seen = seen - counted_prefix * kPageTokens};
}

Result<CacheBytes> CachePlanner::bytes(const SequenceSet& set) const {
  KVANT_TRY(check_set(set));
  const Wide others = wide(set.sequences - 1);  // beside the one that holds what all share
  Wide sealed = 0, exact = 0, needed = 0, ideal = 0;
  for (const PlannedGroup& group : groups_) {
    const GroupPages held = pages(group, set);
    sealed += (wide(held.first.sealed) + others * wide(held.further.sealed)) * group.sealed_page;
    exact += (wide(held.first.exact) + others * wide(held.further.exact)) * group.exact_page;
    needed += others * page_bytes(group, held.growing) + page_bytes(group, held.filling);
    ideal += (wide(held.seen) + others * wide(held.further_seen)) * 2 *
             wide(group.stream.entry_elements()) * wide(static_cast<int64_t>(group.layers.size())) /
             wide(options_.context_ranks);
  }
  const Wide state = wide(set.sequences) * state_bytes();
  CacheBytes out;
  KVANT_ASSIGN(out.needed, narrow(needed + state));  // the greatest of all
  KVANT_ASSIGN(out.ideal, narrow(ideal));
  KVANT_ASSIGN(out.sealed, narrow(sealed));
  KVANT_ASSIGN(out.exact, narrow(exact));
  KVANT_ASSIGN(out.state, narrow(state));
  return out;
}

uint64_t CachePlanner::state_bytes() const {
  uint64_t bytes = 0;
  for (const StateGroup& group : states_) bytes += group.layers.size() * group.state.bytes();
  return bytes;
}

double CachePlanner::bytes_per_token() const {
  double bytes = 0;
  for (const PlannedGroup& group : groups_) bytes += group.bytes_per_token();
  return bytes;
}

double CachePlanner::bytes_per_token_long() const {
  double bytes = 0;
  for (const PlannedGroup& group : groups_) {
    if (!group.slides) bytes += group.bytes_per_token();
  }
  return bytes;
}

SideBits CachePlanner::nominal_bits() const {
  return mean_bits([](const PlannedGroup& group, Side side) {
    const auto format = find_format(side == Side::kKey ? group.formats.key : group.formats.value);
    return format.ok() ? (*format)->nominal_bits : 0;
  });
}

SideBits CachePlanner::sealed_bits() const {
  return mean_bits([](const PlannedGroup& group, Side side) {
    return side == Side::kKey ? group.key_bits : group.value_bits;
  });
}

SideBits CachePlanner::mean_bits(double (*bits)(const PlannedGroup&, Side)) const {
  double sums[2] = {}, elements[2] = {};
  for (const PlannedGroup& group : groups_) {
    const double rows = static_cast<double>(group.layers.size()) * group.stream.heads;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const size_t at = side == Side::kKey ? 0 : 1;
      const double n = rows * (side == Side::kKey ? group.stream.k_dim : group.stream.v_dim);
      sums[at] += n * bits(group, side);
      elements[at] += n;
    }
  }
  const auto mean = [](double sum, double n) { return n == 0 ? 0 : sum / n; };
  return {.key = mean(sums[0], elements[0]),
          .value = mean(sums[1], elements[1]),
          .both = mean(sums[0] + sums[1], elements[0] + elements[1])};
}

Result<int64_t> CachePlanner::max_sequences(const SequenceSet& set, uint64_t bytes) const {
  return greatest(kMaxSequences, [&](int64_t sequences) -> Result<bool> {
    if (sequences == 0) return true;
    SequenceSet more = set;
    more.sequences = sequences;
    return fits(more, bytes);
  });
}

Result<int64_t> CachePlanner::max_tokens(const SequenceSet& set, uint64_t bytes,
                                         int64_t limit) const {
  return greatest(std::min(limit, kMaxSequenceTokens), [&](int64_t tokens) -> Result<bool> {
    if (tokens == 0) return true;
    SequenceSet longer = set;
    longer.tokens = tokens;
    return fits(longer, bytes);
  });
}

Result<bool> CachePlanner::fits(const SequenceSet& set, uint64_t bytes) const {
  const Result<CacheBytes> need = this->bytes(set);
  if (need.ok()) return need->needed <= bytes;
  if (need.status().code() == Code::kExhausted) return false;
  return need.status();
}

}  // namespace kvant
