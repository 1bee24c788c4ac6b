// kvant serve as a process, and kvant load against it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiny_chat_model.h"

namespace kvant::cli {
namespace {

using testing::HasSubstr;

// Serves the tiny model on a free port while `ask` runs as a shell's line, with the port in $port.
// Then SIGTERM; `out` ends with the server's exit code.
ProgramRun while_serving(const std::string& options, const std::string& ask) {
  const std::string log = (scratch() / "serve.log").string();
  return run_shell(
      quoted(KVANT_PROGRAM) + " serve " + quoted(tiny_chat_model()) + " --port 0 " + options +
      " 2>" + quoted(log) + " & pid=$!; i=0; while ! grep -q ^serving " + quoted(log) +
      " && kill -0 $pid && [ $i -lt 3000 ]; do sleep 0.01; i=$((i+1)); done; "
      "port=$(sed -n 's/^serving .*://p' " +
      quoted(log) + "); " + ask + "; kill -TERM $pid; wait $pid; echo exit $?; cat " + quoted(log));
}

TEST(Serve, SaysWhatItDoesAndEndsWhenTold) {
  const ProgramRun run = while_serving("--kv int8_token --memory 8M --sinks 0", "true");
  EXPECT_THAT(run.out, HasSubstr("exit 0")) << run.out;
  for (const char* fact : {"model    ", "compute  ", "cache    int8_token", "pages    8.39 MB",
                           "capacity 256 tokens a sequence; ", "swapping ", "prefixes kept",
                           "serving  ", "stopping: "}) {
    EXPECT_THAT(run.out, HasSubstr(fact));
  }
}

TEST(Serve, BearsKvantLoad) {
  const ProgramRun run =
      while_serving("--kv int8_token --memory 64M",
                    quoted(KVANT_PROGRAM) +
                        " load http://127.0.0.1:$port --input-len 32:64 --output-len 8 "
                        "--ignore-eos --concurrency 1,4 --requests 12 --slo ttft=2s,itl=1s");
  EXPECT_THAT(run.out, HasSubstr("exit 0")) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("load  done  failed"));
}

TEST(Serve, CaseH1_BadOptionsAreOneSentence) {
  const struct {
    std::vector<std::string> words;
    const char* message;
  } cases[] = {
      {{"--port", "70000"}, "--port 70000"},
      {{"--host", "nowhere"}, "--host is 'nowhere', wanted an IP address"},
      {{"--prefix-cache", "maybe"}, "--prefix-cache is 'maybe', wanted on or off"},
      {{"--memory", "1M", "--pages", "4"}, "--memory and --pages were both given"},
      {{"--memory", "900000G"}, "of memory are available"},
      {{"--api-key-file", "/nowhere"}, "/nowhere"},
      {{"--exact-window", "64"}, "exact window"},
      {{"--swap-memory", "900000G"}, "--swap-memory is "},
      {{"--max-model-len", "257"}, "takes at most 256 tokens"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> words = {"serve", tiny_chat_model()};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const ProgramRun run = run_program(words);
    EXPECT_NE(run.exit_code, 0) << c.message;
    EXPECT_THAT(run.err, HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace kvant::cli
