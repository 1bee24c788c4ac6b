// kvant serve as a process, and kvant load against it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

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

// A port that nobody listens on now.
std::string free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(socket, any, size), 0);
  EXPECT_EQ(::getsockname(socket, any, &size), 0);
  ::close(socket);
  return std::to_string(ntohs(address.sin_port));
}

// A load of as many requests as the next word says.
std::string load_of(const std::string& port) {
  return quoted(KVANT_PROGRAM) + " load http://127.0.0.1:" + port +
         " --input-len 8 --output-len 2 --ignore-eos --concurrency 1 --timeout 20 --requests ";
}

// Of a shell: a server at that port in the background, its log somewhere, and a wait until it
// answers (a load of one request comes through).
std::string served_at(const std::string& port, const std::string& log) {
  return "ask() { " + load_of(port) + "$1; }; " + quoted(KVANT_PROGRAM) + " serve " +
         quoted(tiny_chat_model()) + " --kv int8_token --memory 8M --port " + port + " 2>" +
         quoted(log) +
         " & pid=$!; i=0; while ! ask 1 >/dev/null 2>&1 && kill -0 $pid && [ $i -lt " +
         "300 ]; do sleep 0.05; i=$((i+1)); done; ";
}

// Whatever can't be written of the log, requests are served, and the end is an orderly one.
TEST(Serve, AFullDiskForLogsEndsNothing) {
  const ProgramRun run = run_shell(served_at(free_port(), "/dev/full") +
                                   "ask 5; kill -TERM $pid; wait $pid; echo exit $?");
  EXPECT_THAT(run.out, HasSubstr("5 requests in")) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("exit 0")) << run.out << run.err;
}

// Killed while it answers, it leaves nothing that keeps the next one from the same port.
TEST(Serve, KilledAndStartedAgain) {
  const std::string port = free_port();
  const std::string first = served_at(port, "/dev/null");
  const ProgramRun run =
      run_shell(first + load_of(port) +
                "100000 >/dev/null 2>&1 & asking=$!; sleep 0.3; kill -KILL $pid; wait $pid; "
                "kill -TERM $asking; wait $asking; " +
                first + "ask 5; kill -TERM $pid; wait $pid; echo exit $?");
  EXPECT_THAT(run.out, HasSubstr("5 requests in")) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("exit 0")) << run.out << run.err;
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
