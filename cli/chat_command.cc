// kvant chat: a conversation in the terminal, or line by line from a pipe. The cache lives as long
// as the conversation: a turn computes only what is new.

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "cli/answer.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/memory.h"
#include "cli/open_model.h"
#include "cli/prompt.h"
#include "cli/terminal.h"

namespace kvant::cli {
namespace {

class Chat {
 public:
  Chat(const Invocation& in, const OpenModel& open, KvCache& cache)
      : in_(in),
        open_(open),
        cache_(cache),
        terminal_(isatty(STDIN_FILENO) != 0),
        engine_(*open.model, cache,
                {.chunk = static_cast<int>(in.settings.chunk), .context = in.settings.context}) {
    reset();
  }

  Status run() {
    if (terminal_)
      note("Type a message; /reset starts anew, /exit (or Ctrl-D) ends, Ctrl-C ends an answer.\n");
    for (std::string line; prompt(), read_line(line);) {
      if (line.empty()) continue;
      if (line == "/exit" || line == "/quit") break;
      if (line == "/reset") {
        KVANT_TRY(engine_.close_session(session_));
        reset();
        continue;
      }
      KVANT_TRY(turn(line));
    }
    return {};
  }

 private:
  // One line without its end, be it LF or CR LF, and without the byte order mark that some editors
  // put before the first.
  bool read_line(std::string& line) {
    constexpr std::string_view kMark = "\xef\xbb\xbf";
    if (!std::getline(std::cin, line)) return false;
    if (line.ends_with('\r')) line.pop_back();
    if (first_line_ && line.starts_with(kMark)) line.erase(0, kMark.size());
    first_line_ = false;
    return true;
  }

  void prompt() const {
    if (terminal_) note("{}", paint("> ", Color::kGreen, has_colors(stderr)));
  }

  void reset() {
    messages_.clear();
    if (!in_.settings.system.empty()) messages_.push_back({"system", in_.settings.system});
    session_ = engine_.open_session();
  }

  Status turn(const std::string& line) {
    messages_.push_back({"user", line});
    KVANT_ASSIGN(std::vector<int32_t> tokens, chat_tokens(open_.model->tokenizer(), messages_));
    if (static_cast<int64_t>(tokens.size()) > engine_.context()) {
      messages_.pop_back();
      note("the conversation has {} tokens, the context holds {}; /reset starts anew\n",
           tokens.size(), engine_.context());
      return {};
    }
    note_bad_utf8(line, "the message");
    GenerationRequest request = make_request(in_.settings, std::move(tokens));
    request.session = session_;
    const InterruptScope scope;
    KVANT_ASSIGN(const Answer answer, run_request(engine_, std::move(request), Show::kYes,
                                                  &InterruptScope::interrupted));
    messages_.push_back({"assistant", answer.text});
    note("{}\n", paint(describe(answer, cache_.usage(), open_.caches.front().exact_bits()),
                       Color::kDim, has_colors(stderr)));
    return {};
  }

  const Invocation& in_;
  const OpenModel& open_;
  KvCache& cache_;
  const bool terminal_;
  bool first_line_ = true;
  Engine engine_;
  SessionId session_ = 0;
  std::vector<ChatMessage> messages_;
};

}  // namespace

Status run_chat(const Invocation& in) {
  KVANT_ASSIGN(OpenModel open, open_model(in, {{in.settings.kv}, false, in.settings.context}));
  if (open.model->tokenizer().chat_template().empty()) {
    return unsupported(
        fmt::format("{} has no chat template; kvant generate takes a plain prompt", in.model));
  }
  announce(in, open);
  note_bad_utf8(in.settings.system, "the system message");
  note_idle_sampling(in.settings);
  // Nobody knows how long a conversation gets: the cache refuses to outgrow the memory.
  CacheOptions options = open.caches.front().options;
  options.max_bytes = available_memory();
  in.memory->add(fmt::format("a conversation cached in {}", in.settings.kv),
                 static_cast<double>(options.max_bytes),
                 "/reset, or fewer bits in --kv, take less");
  KVANT_ASSIGN(const std::unique_ptr<KvCache> cache, KvCache::create(options, *open.threads));
  return Chat(in, open, *cache).run();
}

}  // namespace kvant::cli
