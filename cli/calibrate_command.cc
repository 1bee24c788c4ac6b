// kvant calibrate: what formats need to know of a model, learned from text.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>

#include "calibrate/checkpoint.h"
#include "calibrate/overlap.h"
#include "calibrate/sidecar.h"
#include "cli/calibrate_request.h"
#include "cli/calibration_run.h"
#include "cli/memory.h"
#include "cli/out_folder.h"
#include "cli/scale_report.h"
#include "cli/stability.h"
#include "cli/terminal.h"
#include "files/digest.h"
#include "files/fingerprint.h"
#include "formats/names.h"
#include "simd/cpu.h"

namespace kvant::cli {
namespace {

std::string sidecar_path(const Settings& s, const std::string& model) {
  std::error_code error;
  std::filesystem::path folder = s.out_directory;
  if (folder.empty()) {
    folder = model;
    if (!std::filesystem::is_directory(folder, error)) folder = folder.parent_path();
  }
  return (folder / kSidecarName).string();
}

constexpr std::string_view kNoneOwned = "no layer keeps a K and a V, which scales are for";

// Layers that a format has no transform for, and why.
using Failures = std::map<std::string, std::vector<int>>;

// tc<B>: one basis, and bits for each format.
Status fit_bases(const LayerMoments& moments, std::span<const Target* const> targets,
                 LayerTransforms& fits, std::vector<std::string>& failures) {
  std::vector<HeadTransform> heads;
  for (const HeadMoments& head : moments.heads) {
    KVANT_ASSIGN(HeadTransform fit, fit_transform(head, moments.dim));
    heads.push_back(std::move(fit));
  }
  for (const Target* target : targets) {
    std::vector<std::vector<int>> bits;
    for (const HeadTransform& head : heads)
      bits.push_back(allocate_bits(head.variances, target->options));
    if (bits.front().empty()) {  // a question of the width, alike in all heads
      failures.push_back(
          fmt::format("{}: no widths of sections give {} bits on average to {} channels",
                      target->format, target->options.mean_bits, moments.dim));
      continue;
    }
    fits.bits[std::string(target->format)] = std::move(bits);
  }
  if (fits.bits.empty()) return {};
  for (HeadTransform& head : heads) fits.matrices.push_back(std::move(head.matrices));
  return {};
}

// bal<B>: one basis, and the same bits everywhere.
Status fit_balanced_bases(const LayerMoments& moments, std::span<const Target* const> targets,
                          LayerTransforms& fits) {
  std::vector<std::vector<float>> heads;
  for (const HeadMoments& head : moments.heads) {
    KVANT_ASSIGN(std::vector<float> fit, fit_balanced(head, moments.dim));
    heads.push_back(std::move(fit));
  }
  fits.balanced = std::move(heads);
  for (const Target* target : targets) {
    const std::vector<int> bits(static_cast<size_t>(moments.dim), target->options.mean_bits);
    fits.bits[std::string(target->format)].assign(moments.heads.size(), bits);
  }
  return {};
}

void fit_layer(const LayerMoments& moments, std::span<const Target* const> targets,
               LayerTransforms& fits, std::vector<std::string>& failures) {
  fits.dim = moments.dim;
  std::vector<const Target*> shared, equal;
  for (const Target* target : targets) (target->balanced ? equal : shared).push_back(target);
  const auto note = [&](const Status& status, const std::vector<const Target*>& of) {
    if (status.ok()) return;
    for (const Target* target : of)
      failures.push_back(fmt::format("{}: {}", target->format, status.message()));
  };
  if (!shared.empty()) note(fit_bases(moments, shared, fits, failures), shared);
  if (!equal.empty()) note(fit_balanced_bases(moments, equal, fits), equal);
}

std::vector<LayerTransforms> fit_layers(const KeyStatistics& statistics,
                                        std::span<const Target* const> targets, ThreadPool& threads,
                                        std::vector<std::string>& notes) {
  const size_t count = statistics.layers().size();
  std::vector<LayerTransforms> out(count);
  std::vector<std::vector<std::string>> failures(count);
  threads.run(count, [&](size_t l, int) {
    if (statistics.layers()[l].dim > 0)
      fit_layer(statistics.layers()[l], targets, out[l], failures[l]);
  });
  Failures reasons;
  for (size_t l = 0; l < count; ++l) {
    for (const std::string& reason : failures[l]) reasons[reason].push_back(static_cast<int>(l));
  }
  for (const auto& [reason, layers] : reasons)
    notes.push_back(fmt::format("layers {} have no {}", index_ranges(layers), reason));
  return out;
}

std::string command_line(const Invocation& in) {
  std::string out = fmt::format("kvant calibrate {}", in.model);
  const Settings& s = in.settings;
  if (s.source == "fixed") return out + fmt::format(" --source fixed --for {}", s.formats_for);
  const std::pair<std::string_view, std::string> texts[] = {
      {"source", s.source == "dataset" ? "" : s.source},
      {"data", s.data},
      {"samples", std::to_string(s.samples)},
      {"max-length", s.buckets.empty() ? std::to_string(s.max_length) : ""},
      {"buckets", s.buckets},
      {"seed", std::to_string(s.seed)},
      {"for", s.formats_for},
      {"method", s.is_given("method") ? s.scale_method : ""},
      {"sinks", s.is_given("sinks") ? std::to_string(s.sinks) : ""},
      {"held-out", s.held_out}};
  for (const auto& [name, value] : texts) {
    if (!value.empty()) out += fmt::format(" --{} {}", name, value);
  }
  return out;
}

// What --skip-bad passed over.
void add_skipped(std::string_view where, int64_t lines, int64_t documents,
                 std::vector<std::string>& notes) {
  if (lines > 0) notes.push_back(fmt::format("{}{} skipped", where, counted(lines, "bad line")));
  if (documents == 0) return;
  notes.push_back(fmt::format("{}{} skipped that the model's tokenizer or chat template can't read",
                              where, counted(documents, "document")));
}

// One calibration, from its options to its files.
class Calibration {
 public:
  Calibration(const Invocation& in, CalibrateRequest request)
      : in_(in), s_(in.settings), targets_(std::move(request.targets)), source_(request.source) {}

  // What can be refused before the model is loaded.
  Status prepare() {
    path_ = sidecar_path(s_, in_.model);
    kept_ = std::filesystem::path(path_).parent_path() / kStateName;
    std::error_code error;
    if (s_.resume && !std::filesystem::exists(kept_, error)) {
      return not_found(
          fmt::format("--resume: there is nothing to resume, no {}; wanted the --out of a run that "
                      "Ctrl-C ended",
                      kept_.string()));
    }
    for (const ScaledFormat* format : targets_.scales.formats) {
      const bool fits = fits_checkpoint(format->name) && checkpoint_.format.empty();
      if (!s_.out_directory.empty() && std::filesystem::is_directory(in_.model, error) && fits)
        checkpoint_ = {in_.model, s_.out_directory, std::string(format->name), {}};
    }
    if (!checkpoint_.format.empty()) KVANT_TRY(check_checkpoint(checkpoint_));
    if (source_ != Source::kFixed) {
      KVANT_ASSIGN(text_, CalibrationText::open(s_, s_.data));
    }
    if (!s_.held_out.empty()) {
      KVANT_ASSIGN(held_out_, CalibrationText::open(s_, s_.held_out));
    }
    KVANT_TRY(note_few_documents());
    note_sensitivities();
    if (!s_.out_directory.empty()) KVANT_TRY(out_folder_.make(s_.out_directory));
    return check_writable(path_);
  }

  Status run() {
    KVANT_ASSIGN(open_, open_model(in_, {}));
    KVANT_ASSIGN(facts_.model, model_fingerprint(in_.model));
    announce(in_, *open_);
    const auto start = std::chrono::steady_clock::now();
    if (source_ == Source::kFixed) {
      scales_ = fixed_scales(open_->model->info().cache_layers,
                             open_->model->info().num_query_heads, targets_.scales);
    } else {
      KVANT_TRY(learn());
    }
    seconds_ = std::chrono::steady_clock::now() - start;
    KVANT_TRY(check_found());
    scales_.source = targets_.scales.formats.empty() ? "" : s_.source;
    scales_.method = source_ == Source::kFixed ? "" : s_.scale_method;
    if (s_.strict && !notes_.empty()) return unsupported(notes_.front());
    return write();
  }

  Status report() const;

 private:
  // A calibration of nothing isn't written.
  Status check_found() const {
    const bool has_bits = std::any_of(layers_.begin(), layers_.end(),
                                      [](const LayerTransforms& of) { return !of.bits.empty(); });
    if (has_bits || !scales_.all_formats().empty()) return {};
    return unsupported(fmt::format(
        "nothing was found to write: {}",
        notes_.empty() ? std::string(kNoneOwned) : fmt::format("{}", fmt::join(notes_, "; "))));
  }

  // The text's name for people.
  std::string text_name() const { return s_.data.empty() ? text_->digest() : s_.data; }

  Status note_few_documents() {
    if (!text_ || s_.source == "random") return {};
    const int64_t seen = text_->documents().seen;
    if (seen >= s_.samples || !s_.is_given("samples")) return {};
    notes_.push_back(fmt::format("--samples {}: {} has only {}", s_.samples, s_.data,
                                 counted(seen, "document")));
    return s_.strict ? invalid_argument(notes_.back()) : Status();
  }

  // They were measured with what this run replaces.
  void note_sensitivities() {
    std::error_code error;
    if (!std::filesystem::exists(path_, error)) return;
    const Result<Sidecar> there = Sidecar::open(path_);
    if (there.ok() && !there->contents().sensitivities.formats.empty())
      said_.push_back(fmt::format(
          "the sensitivities that {} held belong to what it was: they are left out", path_));
  }

  // Everything that sums depend on.
  std::string identity() const {
    Digest digest;
    for (const std::string& part :
         {facts_.model, text_->digest(), command_line(in_), s_.weights,
          std::string(s_.invariant ? "invariant" : ""), std::string(KVANT_VERSION),
          std::string(isa_name(active_isa())), open_->model->info().compute}) {
      digest.add(uint64_t{part.size()});
      digest.add(part);
    }
    return digest.hex();
  }

  Status learn() {
    const ModelInfo& info = open_->model->info();
    std::optional<KeyStatistics> keys;
    std::optional<RangeStatistics> ranges, rotated;
    if (!targets_.transforms.empty()) keys.emplace(info, *open_->threads);
    if (!targets_.scales.formats.empty())
      ranges.emplace(info, RangeOptions{.skipped = s_.sinks, .channels = true}, *open_->threads);
    if (needs_rotated(targets_.scales))
      rotated.emplace(info, RangeOptions{.skipped = s_.sinks, .rotated = true}, *open_->threads);
    const Statistics statistics = {keys ? &*keys : nullptr, ranges ? &*ranges : nullptr,
                                   rotated ? &*rotated : nullptr};
    if (ranges) KVANT_TRY(check_statistics_memory(ranges->bytes()));
    KVANT_TRY(read(statistics));
    facts_.data = text_->digest();
    facts_.tokens = state_.tokens;
    facts_.lines = line_hashes(text_->documents().sample);
    if (keys) layers_ = fit_layers(*keys, targets_.transforms, *open_->threads, notes_);
    return ranges ? find_scales(statistics) : Status();
  }

  // Channels take theirs when they first meet a number.
  Status check_statistics_memory(uint64_t bytes) {
    MemoryBudget rest;  // what the model takes is taken already
    for (MemoryBudget* budget : {&rest, in_.memory}) {
      budget->add("the magnitudes of every channel", static_cast<double>(bytes),
                  "--for without formats of given scales takes none");
    }
    return rest.check(available_memory());
  }

  Status read(const Statistics& statistics) {
    state_.identity = identity();
    if (s_.resume) {
      KVANT_ASSIGN(state_, load_state(kept_, state_.identity, statistics));
      tokens_before_ = state_.tokens;
    }
    StateKeeper keeper(kept_, statistics);
    const auto keep = [&](const CalibrationState& state) {
      return keeper.keep_now_and_then(state);
    };
    const Status status =
        read_documents(in_, *open_, {*text_, statistics, "calibrating", {}, keep}, state_);
    if (status.code() == Code::kCancelled) {
      KVANT_TRY(save_state(kept_, state_, statistics));
      return cancelled(status.message() + "; the same command with --resume goes on");
    }
    KVANT_TRY(status);
    std::error_code error;
    std::filesystem::remove(kept_, error);
    return check_enough(statistics);
  }

  Status check_enough(const Statistics& statistics) {
    const auto read = static_cast<int64_t>(text_->size()) - state_.too_short - state_.skipped;
    if (statistics.keys != nullptr && read == 0) {
      return invalid_argument(fmt::format(
          "{}: no document that the model can read has {} tokens, the least with a query behind a "
          "page after the first",
          text_name(), kLeastKeyTokens));
    }
    if (statistics.keys != nullptr && state_.too_short > 0) {
      notes_.push_back(
          fmt::format("{} of fewer than {} tokens say nothing to transforms and were "
                      "passed over",
                      counted(state_.too_short, "document"), kLeastKeyTokens));
    }
    if (state_.tokens < kPageTokens) {
      return invalid_argument(fmt::format("{}: {} in all, wanted at least {} to find scales from",
                                          text_name(), counted(state_.tokens, "token"),
                                          kPageTokens));
    }
    return {};
  }

  Status find_scales(const Statistics& statistics) {
    const SeenRanges seen = seen_by(statistics);
    std::vector<int> without;
    scales_ = fit_scales(seen, targets_.scales, *open_->threads, without);
    if (without.empty() && scales_.all_formats().empty()) notes_.emplace_back(kNoneOwned);
    const auto was_seen = [](const LayerRanges& of) {
      return !of.key.heads.empty() && of.key.heads.front().magnitudes.count() > 0;
    };
    const bool any_seen = std::any_of(seen.plain.begin(), seen.plain.end(), was_seen);
    if (!without.empty()) {
      notes_.push_back(fmt::format(
          "layers {} get no scales: {}", index_ranges(without),
          any_seen ? "K or V was zero throughout, in a head or in all of them"
                   : fmt::format("no document has a token behind the first {}, --sinks, which "
                                 "don't count",
                                 s_.sinks)));
    }
    if (held_out_) return check_scales(statistics.rotated != nullptr);
    count_beyond(seen, scales_);
    scales_.checked_on = "the data itself";
    return {};
  }

  // On the held-out text.
  Status check_scales(bool turns) {
    const ModelInfo& info = open_->model->info();
    RangeStatistics others(info, {.skipped = s_.sinks}, *open_->threads);
    std::optional<RangeStatistics> rotated;
    if (turns)
      rotated.emplace(info, RangeOptions{.skipped = s_.sinks, .rotated = true}, *open_->threads);
    const Statistics statistics = {nullptr, &others, rotated ? &*rotated : nullptr};
    KVANT_TRY(read_documents(in_, *open_, {*held_out_, statistics, "checking"}, checked_));
    count_beyond(seen_by(statistics), scales_);
    scales_.checked_on = held_out_->digest();
    const int64_t shared = count_shared(line_hashes(held_out_->documents().sample), facts_.lines);
    if (shared > 0) {
      notes_.push_back(fmt::format("--held-out {} shares {} with --data: it isn't held out",
                                   s_.held_out, counted(shared, "line")));
    }
    return {};
  }

  Status write() {
    facts_.command = command_line(in_);
    facts_.seed = static_cast<uint64_t>(s_.seed);
    std::string bytes = make_sidecar({facts_, layers_, scales_});
    if (checkpoint_.format.empty()) return write_text(path_, bytes);
    checkpoint_.sidecar = std::move(bytes);
    return write_checkpoint(checkpoint_, scales_);
  }

  const Invocation& in_;
  const Settings& s_;
  Targets targets_;
  Source source_;
  OutFolder out_folder_;
  std::string path_;
  std::filesystem::path kept_;    // the state of a calibration that was interrupted
  CheckpointRequest checkpoint_;  // without a format: none is written
  std::optional<CalibrationText> text_, held_out_;
  std::optional<OpenModel> open_;
  CalibrationState state_, checked_;  // of the data and of the held-out text
  int64_t tokens_before_ = 0;         // that an interrupted run had read
  SidecarFacts facts_;
  std::vector<LayerTransforms> layers_;
  CacheScales scales_;
  std::vector<std::string> notes_;  // of what is missing: errors under --strict
  std::vector<std::string> said_;   // worth knowing, never an error
  std::chrono::duration<double> seconds_{};
};

Status Calibration::report() const {
  std::vector<std::string> notes = notes_;
  notes.insert(notes.end(), said_.begin(), said_.end());
  const int64_t skipped = text_ ? text_->documents().skipped : 0;
  const int64_t held_out_skipped = held_out_ ? held_out_->documents().skipped : 0;
  add_skipped("", skipped, state_.skipped, notes);
  add_skipped("--held-out: ", held_out_skipped, checked_.skipped, notes);
  const auto sampled = static_cast<int64_t>(text_ ? text_->size() : 0);
  const int64_t seen = text_ && s_.source == "dataset" ? text_->documents().seen : sampled;
  if (!takes_output(s_.json)) {
    std::string out =
        source_ == Source::kFixed
            ? std::string("scales fixed at 1: no text was read\n")
            : fmt::format("{} of {} ({} drawn of {}) in {:.1f} s, {:.0f} tokens a second\n",
                          counted(state_.tokens, "token"), text_name(), sampled, seen,
                          seconds_.count(),
                          static_cast<double>(state_.tokens - tokens_before_) / seconds_.count());
    out += scale_summary(scales_, held_out_ ? s_.held_out : scales_.checked_on);
    out += fmt::format("{} written; use it with --calibration {}\n", path_, path_);
    if (!checkpoint_.format.empty())
      out += fmt::format("{} is a checkpoint whose cache is {}\n", s_.out_directory,
                         checkpoint_.format);
    for (const std::string& note : notes) out += fmt::format("note: {}\n", note);
    KVANT_TRY(write_text("-", out));
  }
  if (s_.json.empty()) return {};
  return write_json(s_.json, {{"path", path_},
                              {"model", facts_.model},
                              {"data", facts_.data},
                              {"command", facts_.command},
                              {"formats", split_items(s_.formats_for)},
                              {"source", s_.source},
                              {"checkpoint", checkpoint_.format.empty() ? "" : s_.out_directory},
                              {"documents", sampled},
                              {"documents_seen", seen},
                              {"skipped_lines", skipped},
                              {"skipped_documents", state_.skipped},
                              {"held_out_skipped_lines", held_out_skipped},
                              {"held_out_skipped_documents", checked_.skipped},
                              {"too_short", state_.too_short},
                              {"tokens", state_.tokens},
                              {"seconds", seconds_.count()},
                              {"scales", scales_json(scales_)},
                              {"notes", notes}});
}

}  // namespace

Status run_calibrate(const Invocation& in) {
  KVANT_ASSIGN(CalibrateRequest request, calibrate_request(in.settings));
  if (in.settings.stability) return run_stability(in, std::move(request.targets.scales));
  Calibration calibration(in, std::move(request));
  KVANT_TRY(calibration.prepare());
  KVANT_TRY(calibration.run());
  return calibration.report();
}

}  // namespace kvant::cli
