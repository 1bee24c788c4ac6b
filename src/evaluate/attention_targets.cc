#include "evaluate/attention_targets.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvant {
namespace {

using M = TargetMeasure;
using K = RunKind;

// Between two turns of a layer all other subjects have theirs, so that a few layers are enough to
// find none in a cache. Peers need seconds for a long prefill, hence fewer rounds.
AttentionShape heads_32(std::vector<int> tokens, int queries, int layers) {
  return {.heads = 32,
          .kv_heads = 8,
          .dim = 128,
          .tokens = std::move(tokens),
          .queries = queries,
          .layers = layers};
}

constexpr std::string_view kSingle = "decode/32x8x128";  // what batches are compared with

const std::vector<TargetRun>& runs() {
  static const std::vector<TargetRun> table = {
      {kSingle, K::kDecode, heads_32({8192}, 1, 2), 21},
      {"decode/9x3x64",
       K::kDecode,
       {.heads = 9, .kv_heads = 3, .dim = 64, .tokens = {8192}, .layers = 4},
       21},
      {"decode/4x1x256",
       K::kDecode,
       {.heads = 4, .kv_heads = 1, .dim = 256, .tokens = {8192}, .layers = 4},
       21},
      {"batch/8-mixed", K::kBatch,
       heads_32({512, 1024, 2048, 4096, 6144, 8192, 12288, 16384}, 1, 1), 15},
      {"batch/1x128k", K::kBatch, heads_32({131072}, 1, 1), 9},
      {"prefill/128at4k", K::kPrefill, heads_32({4096}, 128, 1), 9},
      {"prefill/512at4k", K::kPrefill, heads_32({4096}, 512, 1), 9},
      {"prefill/128at16k", K::kPrefill, heads_32({16384}, 128, 1), 9},
      {"prefill/512at16k", K::kPrefill, heads_32({16384}, 512, 1), 9},
  };
  return table;
}

constexpr std::string_view kInt8 =
    "int8,int8_token,int8_head,int8_tensor,int8_token_rot,int8_channel_z_rot/int8_token_rot";

// "No slower": what the clock of a shared machine can tell apart is a few percent.
constexpr double kEven = 0.97;

// clang-format off
constexpr AttentionTarget kTargets[] = {
    {"BF16: share of bandwidth", K::kDecode, "bf16", M::kShare, "", 0.75},
    {"int8: share of bandwidth", K::kDecode, kInt8, M::kShare, "", 0.75, 1, TargetIsa::kBest},
    {"int8: times ggml's q8_0", K::kDecode, kInt8, M::kSpeed, "ggml/q8_0", 15, 0, TargetIsa::kBest},
    {"FP8: times BF16", K::kDecode, "fp8_e4m3,fp8_e5m2", M::kSpeed, "bf16", 1.3, 1, TargetIsa::kBest},
    {"int4 per token: times int8", K::kDecode, "int4_token,int4_token_z", M::kSpeed, "int8", 1.6, 0, TargetIsa::kBest},
    {"int4 per token: times ggml's q4_0", K::kDecode, "int4_token,int4_token_z", M::kSpeed, "ggml/q4_0", 30, 0, TargetIsa::kBest},
    {"int4 in groups: times int8", K::kDecode, "int4_g32,int4_g64,int4_g32_z,int4_g64_z", M::kSpeed, "int8", 1.25, 0, TargetIsa::kBest},
    {"tc4, V rotated: times int8", K::kDecode, "tc4/int4", M::kSpeed, "int8", 1.3, 0, TargetIsa::kBest},
    {"tc3, V rotated: times int8", K::kDecode, "tc3/int3", M::kSpeed, "int8", 1.5, 0, TargetIsa::kBest},
    {"tc2, V rotated: times int8", K::kDecode, "tc2/int2", M::kSpeed, "int8", 1.7, 0, TargetIsa::kBest},
    {"K per channel: within 1.1 of per token", K::kDecode, "int8_channel_z/int8_token", M::kSpeed, "int8_token", 1 / 1.1},
    {"K per channel: within 1.1 of per token", K::kDecode, "int4_channel_z/int4_token_z", M::kSpeed, "int4_token_z", 1 / 1.1},
    {"3 and 2 bits: times 4 bits", K::kDecode, "int3_token_z,int2_token_z", M::kSpeed, "int4_token_z", kEven},
    {"3 and 2 bits: times 4 bits", K::kDecode, "tc3/int3,tc2/int2", M::kSpeed, "tc4/int4", kEven},
    {"3 and 2 bits: times 4 bits", K::kDecode, "int3,int2", M::kSpeed, "int4", kEven},
    {"K8V4: times its slower part", K::kDecode, "k8v4", M::kSpeed, "int8,int4", kEven},
    {"K4V2: times its slower part", K::kDecode, "int4/int2", M::kSpeed, "int4,int2", kEven},
    {"every format: times BF16", K::kDecode, "*", M::kSpeed, "bf16", 1},
    {"all threads: times one", K::kDecode, "bf16,int8,int4_token_z,tc4/int4", M::kThreads, "", 1.8},
    {"int8: times ggml's q8_0 on AVX2", K::kDecode, "int8,int8_token", M::kSpeed, "ggml/q8_0", 8, 0, TargetIsa::kAvx2},
    {"int4: times ggml's q4_0 on AVX2", K::kDecode, "int4,int4_token_z", M::kSpeed, "ggml/q4_0", 12, 0, TargetIsa::kAvx2},
    {"same share as one sequence of 8k", K::kBatch, "bf16,int8,int4_token_z,tc4/int4", M::kSameShare, kSingle, 0.9},
    {"prefill: times ggml's q8_0", K::kPrefill, "int8,int4_token_z,int4,tc4/int4", M::kSpeed, "ggml/q8_0", 8},
    {"prefill: times ggml's f16", K::kPrefill, "int8,int4_token_z,int4,tc4/int4", M::kSpeed, "ggml/f16", 2},
    {"prefill, every format: times BF16", K::kPrefill, "*", M::kSpeed, "bf16", 1},
};
// clang-format on

std::vector<std::string_view> items_of(std::string_view list) {
  std::vector<std::string_view> items;
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    items.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return items;
}

bool is_peer(std::string_view name) { return name.starts_with("ggml/"); }

bool holds_on(const AttentionTarget& target, Isa isa) {
  const bool avx2 = isa == Isa::kAvx2;
  return target.isa == TargetIsa::kAny || (target.isa == TargetIsa::kAvx2) == avx2;
}

// The row that `name` (of a peer, or as for --kv) stands for.
std::string row_name(std::string_view name, int dim) {
  if (is_peer(name)) return std::string(name);
  const Result<FormatPair> pair = parse_format_pair(name, {.value_dim = dim});
  return pair.ok() ? pair->name() : std::string(name);
}

const AttentionTiming* find_row(const TargetReport& of, std::string_view name, int threads) {
  const std::string row = row_name(name, of.run->shape.dim);
  for (const AttentionTiming& t : of.report.rows) {
    if (t.name == row && t.threads == threads) return &t;
  }
  return nullptr;
}

const AttentionTiming* slowest(const TargetReport& of, std::string_view names, int threads) {
  const AttentionTiming* out = nullptr;
  for (const std::string_view name : items_of(names)) {
    const AttentionTiming* row = find_row(of, name, threads);
    if (row == nullptr) return nullptr;
    if (out == nullptr || row->ms > out->ms) out = row;
  }
  return out;
}

// The slowest row of ours that isn't of floats.
std::string slowest_format(const TargetReport& of, int threads) {
  const AttentionTiming* out = nullptr;
  for (const AttentionTiming& t : of.report.rows) {
    const Result<const FormatInfo*> format = find_format(t.name);
    const bool exact = format.ok() && (*format)->exact;
    if (t.threads != threads || is_peer(t.name) || exact) continue;
    if (out == nullptr || t.ms > out->ms) out = &t;
  }
  return out == nullptr ? "" : out->name;
}

struct Judge {
  std::span<const TargetReport> reports;
  const TargetReport& of;

  std::optional<double> measured(const AttentionTarget& target, std::string_view format,
                                 const AttentionTiming& row) const {
    switch (target.measure) {
      case M::kShare:
        return row.bandwidth_share;
      case M::kSpeed:
        return ratio(slowest(of, target.against, row.threads), row);
      case M::kThreads:
        return ratio(find_row(of, format, 1), row);
      case M::kSameShare:
        return times_share(target.against, format, row);
    }
    return {};
  }

 private:
  static std::optional<double> ratio(const AttentionTiming* slower, const AttentionTiming& row) {
    if (slower == nullptr) return {};
    return slower->ms / row.ms;
  }

  std::optional<double> times_share(std::string_view run, std::string_view format,
                                    const AttentionTiming& row) const {
    for (const TargetReport& other : reports) {
      if (other.run->name != run) continue;
      const AttentionTiming* single = find_row(other, format, row.threads);
      if (single != nullptr) return row.bandwidth_share / single->bandwidth_share;
    }
    return {};
  }
};

TargetVerdict judge(const Judge& judge, const AttentionTarget& target, std::string_view item,
                    int threads) {
  TargetVerdict verdict{.target = &target,
                        .run = std::string(judge.of.run->name),
                        .format = std::string(item),
                        .threads = threads};
  if (item == "*") verdict.format = slowest_format(judge.of, threads);
  const AttentionTiming* row = find_row(judge.of, verdict.format, threads);
  if (row == nullptr) return verdict;
  verdict.row = *row;
  verdict.measured = judge.measured(target, verdict.format, *row);
  verdict.reached = verdict.measured && *verdict.measured >= target.wanted;
  if (target.measure == M::kThreads && row->bandwidth_share >= kFullShare) verdict.reached = true;
  return verdict;
}

// Formats that sides of this width can take.
Result<FormatPair> pair_for(std::string_view name, int dim) {
  KVANT_ASSIGN(FormatPair pair, parse_format_pair(name, {.value_dim = dim}));
  KVANT_ASSIGN(const FormatInfo* key, find_format(pair.key));
  KVANT_ASSIGN(const FormatInfo* value, find_format(pair.value));
  KVANT_TRY(sealed_bits(*key, Side::kKey, dim).status());
  KVANT_TRY(sealed_bits(*value, Side::kValue, dim).status());
  return pair;
}

}  // namespace

std::span<const TargetRun> target_runs() { return runs(); }

std::span<const AttentionTarget> attention_targets() { return kTargets; }

std::vector<TargetVerdict> judge_targets(std::span<const TargetReport> reports, Isa isa) {
  std::vector<TargetVerdict> verdicts;
  for (const TargetReport& of : reports) {
    const Judge with{reports, of};
    for (const AttentionTarget& target : kTargets) {
      if (target.kind != of.run->kind || !holds_on(target, isa)) continue;
      for (const AttentionBandwidth& pool : of.report.bandwidths) {
        const bool of_one = target.measure == M::kThreads && pool.threads == 1;
        if (of_one || (target.threads != 0 && target.threads != pool.threads)) continue;
        for (const std::string_view item : items_of(target.formats))
          verdicts.push_back(judge(with, target, item, pool.threads));
      }
    }
  }
  return verdicts;
}

AttentionRequest target_request(const TargetRun& run, Isa isa, std::string& notes) {
  AttentionRequest request{.shape = run.shape, .pairs = {}, .peers = {}, .repeats = run.repeats};
  const auto add = [&](std::string_view name) {
    if (is_peer(name)) {
      const std::string type(name.substr(name.find('/') + 1));
      if (std::ranges::count(request.peers, type) == 0) request.peers.push_back(type);
      return;
    }
    const Result<FormatPair> pair = pair_for(name, run.shape.dim);
    if (!pair.ok()) {
      notes += fmt::format("{}{}: {} left out: {}", notes.empty() ? "" : "; ", run.name, name,
                           pair.status().message());
    } else if (std::ranges::count(request.pairs, *pair) == 0) {
      request.pairs.push_back(*pair);
    }
  };
  for (const AttentionTarget& target : kTargets) {
    if (target.kind != run.kind || !holds_on(target, isa)) continue;
    for (const std::string_view name : items_of(target.formats)) {
      if (name != "*") add(name);
    }
    if (target.measure != M::kSpeed) continue;
    for (const std::string_view name : items_of(target.against)) add(name);
  }
  return request;
}

Result<std::vector<const TargetRun*>> choose_runs(std::span<const std::string> only) {
  const auto is_named = [&](const TargetRun& run) {
    return only.empty() || std::ranges::any_of(only, [&](const std::string& item) {
             return run.name.starts_with(item);
           });
  };
  const bool has_batch = std::ranges::any_of(
      runs(), [&](const TargetRun& run) { return run.kind == K::kBatch && is_named(run); });
  std::vector<const TargetRun*> chosen;
  std::string names;
  for (const TargetRun& run : runs()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", run.name);
    if (is_named(run) || (has_batch && run.name == kSingle)) chosen.push_back(&run);
  }
  for (const std::string& item : only) {
    const bool known = std::ranges::any_of(
        runs(), [&](const TargetRun& run) { return run.name.starts_with(item); });
    if (!known)
      return invalid_argument(fmt::format("no run begins with {}; the runs are {}", item, names));
  }
  return chosen;
}

}  // namespace kvant
