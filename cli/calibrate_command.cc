// kvant calibrate: what formats need to know of a model, learned from text.

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <map>

#include "calibrate/documents.h"
#include "calibrate/key_statistics.h"
#include "calibrate/sidecar.h"
#include "cli/command.h"
#include "cli/open_model.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "files/fingerprint.h"
#include "formats/names.h"

namespace kvant::cli {
namespace {

// Text of a document, in bytes a token: few languages take more, and what is shorter loses nothing.
constexpr size_t kBytesPerToken = 8;

// A format that can be calibrated for. tc<B>: the widths that its sections may have, chosen by
// measured quality (docs/numerics.md). bal<B>: all channels have its bits.
struct Target {
  std::string_view format;
  BitOptions options;
  bool balanced = false;
};
std::span<const Target> all_targets() {
  static const Target kTargets[] = {{"tc4", {.mean_bits = 4, .widths = {2, 3, 4, 5, 6, 8}}},
                                    {"tc3", {.mean_bits = 3, .widths = {2, 3, 4, 5, 6, 8}}},
                                    {"tc2", {.mean_bits = 2, .widths = {1, 2, 3, 4, 5, 6, 8}}},
                                    {"bal8", {.mean_bits = 8, .widths = {}}, true},
                                    {"bal4", {.mean_bits = 4, .widths = {}}, true},
                                    {"bal3", {.mean_bits = 3, .widths = {}}, true},
                                    {"bal2", {.mean_bits = 2, .widths = {}}, true}};
  return kTargets;
}

Result<std::vector<const Target*>> targets_of(const std::string& list) {
  std::vector<const Target*> targets;
  for (const std::string& name : split_items(list)) {
    const size_t before = targets.size();
    std::string known;
    for (const Target& target : all_targets()) {
      if (target.format == name) targets.push_back(&target);
      known += fmt::format("{}{}", known.empty() ? "" : ", ", target.format);
    }
    if (targets.size() == before) {
      return invalid_argument(
          fmt::format("--for {}: wanted formats out of {}", printable(name), known));
    }
  }
  return targets;
}

std::string sidecar_path(const Settings& s, const std::string& model) {
  std::error_code error;
  std::filesystem::path folder = s.out_directory;
  if (folder.empty()) {
    folder = model;
    if (!std::filesystem::is_directory(folder, error)) folder = folder.parent_path();
  }
  return (folder / kSidecarName).string();
}

Result<std::vector<int32_t>> tokens_of(const Tokenizer& tokenizer, const Document& document) {
  if (document.messages.empty()) return text_tokens(tokenizer, document.text);
  KVANT_ASSIGN(const std::string text,
               render_chat(tokenizer.chat_template(), document.messages, false,
                           tokenizer.bos() ? tokenizer.piece(*tokenizer.bos()) : "",
                           tokenizer.eos() ? tokenizer.piece(*tokenizer.eos()) : ""));
  return tokenizer.encode(text, SpecialTokens::kNone);
}

struct ReadDocuments {
  int64_t tokens = 0;
  int64_t too_short = 0;  // for a page that counts
};

Result<ReadDocuments> read_documents(const Settings& s, const Documents& documents,
                                     const OpenModel& open, KeyStatistics& statistics) {
  ReadDocuments read;
  Progress progress(fmt::format(
      "calibrating on {}", counted(static_cast<int64_t>(documents.sample.size()), "document")));
  for (size_t d = 0; d < documents.sample.size(); ++d) {
    const Document& document = documents.sample[d];
    Result<std::vector<int32_t>> tokens = tokens_of(open.model->tokenizer(), document);
    if (!tokens.ok()) return tokens.status().with_context(document.place);
    const auto most = static_cast<size_t>(std::min(s.max_length, open.model->info().max_positions));
    if (tokens->size() > most) tokens->resize(most);
    if (tokens->size() < 2 * kPageTokens) {
      ++read.too_short;
    } else {
      const Status status = statistics.add(*open.model, *tokens, static_cast<int>(s.chunk));
      if (!status.ok()) return status.with_context(document.place);
      read.tokens += static_cast<int64_t>(tokens->size());
    }
    progress.update(static_cast<double>(d + 1) / static_cast<double>(documents.sample.size()));
  }
  if (read.tokens > 0) return read;
  return invalid_argument(
      fmt::format("{}: no document has {} tokens, the least that fills a page after the first",
                  s.data, 2 * kPageTokens));
}

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
  const Settings& s = in.settings;
  return fmt::format("kvant calibrate {} --data {} --samples {} --max-length {} --seed {} --for {}",
                     in.model, s.data, s.samples, s.max_length, s.seed, s.formats_for);
}

}  // namespace

Status run_calibrate(const Invocation& in) {
  const Settings& s = in.settings;
  if (s.data.empty()) return invalid_argument("--data: wanted a file of text to calibrate on");
  KVANT_ASSIGN(const std::vector<const Target*> targets, targets_of(s.formats_for));
  const std::string path = sidecar_path(s, in.model);
  KVANT_TRY(check_writable(path));
  KVANT_ASSIGN(const Documents documents,
               sample_documents({.paths = split_items(s.data),
                                 .samples = s.samples,
                                 .seed = static_cast<uint64_t>(s.seed),
                                 .max_bytes = static_cast<size_t>(s.max_length) * kBytesPerToken,
                                 .skip_bad = s.skip_bad}));
  KVANT_ASSIGN(const OpenModel open, open_model(in, {}));
  KVANT_ASSIGN(const std::string fingerprint, model_fingerprint(in.model));
  announce(in, open);

  const auto start = std::chrono::steady_clock::now();
  KeyStatistics statistics(open.model->info(), *open.threads);
  KVANT_ASSIGN(const ReadDocuments read, read_documents(s, documents, open, statistics));
  std::vector<std::string> notes;
  const std::vector<LayerTransforms> layers = fit_layers(statistics, targets, *open.threads, notes);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const SidecarFacts facts{.model = fingerprint,
                           .data = documents.digest,
                           .command = command_line(in),
                           .tokens = read.tokens,
                           .seed = static_cast<uint64_t>(s.seed)};
  KVANT_TRY(write_text(path, make_sidecar(facts, layers)));

  if (read.too_short > 0) {
    notes.push_back(fmt::format("{} of fewer than {} tokens say nothing and were passed over",
                                counted(read.too_short, "document"), 2 * kPageTokens));
  }
  if (documents.skipped > 0)
    notes.push_back(fmt::format("{} skipped", counted(documents.skipped, "bad line")));
  if (!takes_output(s.json)) {
    std::string out = fmt::format(
        "{} of {} ({} drawn of {}) in {:.1f} s, {:.0f} tokens a second\n{} written; use it with "
        "--calibration {}\n",
        counted(read.tokens, "token"), s.data, documents.sample.size(), documents.seen,
        seconds.count(), static_cast<double>(read.tokens) / seconds.count(), path, path);
    for (const std::string& note : notes) out += fmt::format("note: {}\n", note);
    KVANT_TRY(write_text("-", out));
  }
  if (s.json.empty()) return {};
  return write_json(s.json, {{"path", path},
                             {"model", facts.model},
                             {"data", facts.data},
                             {"command", facts.command},
                             {"formats", split_items(s.formats_for)},
                             {"documents", documents.sample.size()},
                             {"documents_seen", documents.seen},
                             {"skipped_lines", documents.skipped},
                             {"too_short", read.too_short},
                             {"tokens", read.tokens},
                             {"seconds", seconds.count()},
                             {"notes", notes}});
}

}  // namespace kvant::cli
