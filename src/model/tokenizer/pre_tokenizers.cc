#include <utility>

#include "model/tokenizer/steps.h"

namespace kvant::tokenizer {
namespace {

// A run of a piece that a pattern matches, or the run between two matches.
struct Run {
  size_t begin;
  size_t end;
  bool match;
};

void find_runs(std::string_view text, const Regex& pattern, std::vector<Run>& runs) {
  runs.clear();
  size_t done = 0;
  for (size_t from = 0; from < text.size();) {
    const std::optional<Match> match = pattern.search(text, from);
    if (!match) break;
    if (match->end == match->begin) {  // an empty match cuts nothing
      if (match->begin >= text.size()) break;
      from = match->begin + utf8_length(static_cast<unsigned char>(text[match->begin]));
      continue;
    }
    if (match->begin > done) runs.push_back({done, match->begin, false});
    runs.push_back({match->begin, match->end, true});
    done = from = match->end;
  }
  if (done < text.size()) runs.push_back({done, text.size(), false});
}

std::vector<Run> merged_with_previous(const std::vector<Run>& runs) {
  std::vector<Run> out;
  bool previous_match = false;
  for (const Run& run : runs) {
    if (run.match && !previous_match && !out.empty()) {
      out.back().end = run.end;
    } else {
      out.push_back(run);
    }
    previous_match = run.match;
  }
  return out;
}

std::vector<Run> merged_with_next(const std::vector<Run>& runs) {
  std::vector<Run> out;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool takes_next = runs[i].match && i + 1 < runs.size() && !runs[i + 1].match;
    out.push_back(runs[i]);
    if (takes_next) out.back().end = runs[++i].end;
  }
  return out;
}

std::vector<Run> contiguous(const std::vector<Run>& runs) {
  std::vector<Run> out;
  for (const Run& run : runs) {
    if (!out.empty() && out.back().match == run.match) {
      out.back().end = run.end;
    } else {
      out.push_back(run);
    }
  }
  return out;
}

std::vector<Run> without_matches(const std::vector<Run>& runs) {
  std::vector<Run> out;
  for (const Run& run : runs) {
    if (!run.match) out.push_back(run);
  }
  return out;
}

std::vector<Run> apply_behavior(const std::vector<Run>& runs, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      return without_matches(runs);
    case SplitBehavior::kIsolated:
      return runs;
    case SplitBehavior::kMergedWithPrevious:
      return merged_with_previous(runs);
    case SplitBehavior::kMergedWithNext:
      return merged_with_next(runs);
    case SplitBehavior::kContiguous:
      return contiguous(runs);
  }
  return runs;
}

void append_runs(const Piece& piece, const std::vector<Run>& runs, std::vector<Piece>& out) {
  for (const Run& run : runs) {
    if (run.end == run.begin) continue;
    out.push_back(
        {piece.text.substr(run.begin, run.end - run.begin), piece.at_start && run.begin == 0});
  }
}

class Split final : public PreTokenizer {
 public:
  Split(std::unique_ptr<Regex> pattern, SplitBehavior behavior, SplitOn on)
      : pattern_(std::move(pattern)), behavior_(behavior), on_(on) {}
  void split(PieceList& list) const override {
    std::vector<Piece> out;
    out.reserve(list.pieces.size());
    std::vector<Run> runs;
    for (const Piece& piece : list.pieces) {
      find_runs(piece.text, *pattern_, runs);
      if (on_ == SplitOn::kGaps) {
        for (Run& run : runs) run.match = !run.match;
      }
      if (behavior_ == SplitBehavior::kIsolated) {  // every family's main cut: no copy of the runs
        append_runs(piece, runs, out);
      } else {
        append_runs(piece, apply_behavior(runs, behavior_), out);
      }
    }
    list.pieces = std::move(out);
  }

 private:
  std::unique_ptr<Regex> pattern_;
  SplitBehavior behavior_;
  SplitOn on_;
};

class SplitChars final : public PreTokenizer {
 public:
  SplitChars(bool (*is_delimiter)(char32_t), SplitBehavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}
  void split(PieceList& list) const override {
    std::vector<Piece> out;
    std::vector<Run> runs;
    for (const Piece& piece : list.pieces) {
      runs.clear();
      for (size_t pos = 0; pos < piece.text.size();) {
        const size_t begin = pos;
        const bool match = is_delimiter_(next_char(piece.text, pos));
        if (!match && !runs.empty() && !runs.back().match) {
          runs.back().end = pos;
        } else {
          runs.push_back({begin, pos, match});
        }
      }
      if (behavior_ == SplitBehavior::kIsolated) {
        append_runs(piece, runs, out);
      } else {
        append_runs(piece, apply_behavior(runs, behavior_), out);
      }
    }
    list.pieces = std::move(out);
  }

 private:
  bool (*is_delimiter_)(char32_t);
  SplitBehavior behavior_;
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, MetaspaceCut cut)
      : replacement_(std::move(replacement)), scheme_(scheme), cut_(cut) {}

  void split(PieceList& list) const override {
    std::vector<Piece> out;
    for (const Piece& piece : list.pieces) {
      const Piece marked{list.owned.emplace_back(with_marks(piece)), piece.at_start};
      if (cut_ == MetaspaceCut::kWhole) {
        out.push_back(marked);
      } else {
        append_runs(marked, merged_with_next(mark_runs(marked.text)), out);
      }
    }
    list.pieces = std::move(out);
  }
  double growth() const override {
    const auto mark = static_cast<double>(replacement_.size());
    return scheme_ == PrependScheme::kAlways ? 1 + mark : mark;
  }

 private:
  std::string with_marks(const Piece& piece) const {
    std::string text;
    text.reserve(piece.text.size() * 3 / 2 + replacement_.size());
    const bool prepend =
        scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && piece.at_start);
    const bool marked = piece.text.starts_with(' ') || piece.text.starts_with(replacement_);
    if (prepend && !marked) text = replacement_;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += replacement_;
      } else {
        text += c;
      }
    }
    return text;
  }

  std::vector<Run> mark_runs(std::string_view text) const {
    std::vector<Run> runs;
    size_t done = 0;
    for (size_t at; (at = text.find(replacement_, done)) != std::string_view::npos;
         done = at + replacement_.size()) {
      if (at > done) runs.push_back({done, at, false});
      runs.push_back({at, at + replacement_.size(), true});
    }
    if (done < text.size()) runs.push_back({done, text.size(), false});
    return runs;
  }

  std::string replacement_;
  PrependScheme scheme_;
  MetaspaceCut cut_;
};

class PrefixSpace final : public PreTokenizer {
 public:
  void split(PieceList& list) const override {
    for (Piece& piece : list.pieces) {
      if (!piece.text.starts_with(' '))
        piece.text = list.owned.emplace_back(" " + std::string(piece.text));
    }
  }
  double growth() const override { return 2; }
};

}  // namespace

std::unique_ptr<PreTokenizer> make_split(std::unique_ptr<Regex> pattern, SplitBehavior behavior,
                                         SplitOn on) {
  return std::make_unique<Split>(std::move(pattern), behavior, on);
}
std::unique_ptr<PreTokenizer> make_split_chars(bool (*is_delimiter)(char32_t),
                                               SplitBehavior behavior) {
  return std::make_unique<SplitChars>(is_delimiter, behavior);
}
std::unique_ptr<PreTokenizer> make_metaspace(std::string replacement, PrependScheme scheme,
                                             MetaspaceCut cut) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme, cut);
}
std::unique_ptr<PreTokenizer> make_prefix_space() { return std::make_unique<PrefixSpace>(); }

}  // namespace kvant::tokenizer
