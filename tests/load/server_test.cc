// What servers of several makes tell of themselves, and servers that we start.
#include "load/server.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "load/own_server.h"
#include "scripted_server.h"

namespace kvant::load {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using json = nlohmann::json;

TEST(Preemptions, AreReadFromPrometheusTextOfAnyMake) {
  EXPECT_EQ(parse_preemptions("# HELP vllm:num_preemptions_total x\n"
                              "vllm:num_preemptions_total{engine=\"0\",model_name=\"a b\"} 3.0\n"
                              "vllm:num_preemptions_total{engine=\"1\"} 4.0 1700000000\n"),
            7);
  EXPECT_EQ(parse_preemptions("kvant:preemptions_total 0"), 0);
  EXPECT_EQ(parse_preemptions("a 1\npreemptions_total NaN\npreemptions_total -1\n"), std::nullopt);
  EXPECT_EQ(parse_preemptions(""), std::nullopt);
  EXPECT_EQ(parse_preemptions("preemptions_total"), std::nullopt);
}

TEST(ChooseModel, TheOnlyOneOrTheOneThatWasNamed) {
  ServerFacts facts;
  EXPECT_THAT(choose_model(facts, "").status().message(), HasSubstr("wanted --model NAME"));
  facts.models = {"a"};
  EXPECT_EQ(*choose_model(facts, ""), "a");
  EXPECT_EQ(*choose_model(facts, "b"), "b");
  facts.models = {"a", "b"};
  EXPECT_THAT(choose_model(facts, "").status().message(), HasSubstr("one of a, b"));
}

// One token per byte, and BOS.
int64_t bytes_and_bos(const std::string& text) { return static_cast<int64_t>(text.size()) + 1; }

json ids(int64_t n) { return json(std::vector<int>(static_cast<size_t>(n), 1)); }

// The text that a request counts, or nothing.
std::string text_in(const json& body, const char* key) {
  return body.contains(key) && body[key].is_string() ? body[key].get<std::string>() : "";
}

TEST(ServerCounter, EveryMakeOfServerIsAskedInItsOwnWay) {
  const auto vllm = [](const HeardRequest& r) {
    return r.path == "/tokenize" && r.json().contains("prompt")
               ? json_answer({{"count", bytes_and_bos(r.json()["prompt"])}})
               : json_answer({}, "400 Bad Request");
  };
  const auto llama_cpp = [](const HeardRequest& r) {
    if (r.path != "/tokenize") return json_answer({}, "404 Not Found");
    const std::string text = text_in(r.json(), "content");
    return json_answer({{"tokens", ids(text.empty() ? 0 : bytes_and_bos(text))}});
  };
  const auto other = [](const HeardRequest& r) {
    if (r.path != "/v1/completions") return json_answer({}, "404 Not Found");
    return json_answer({{"choices", json::array()},
                        {"usage", {{"prompt_tokens", bytes_and_bos(r.json()["prompt"])}}}});
  };
  const struct {
    std::function<std::string(const HeardRequest&)> answer;
    std::string_view name;
  } kMakes[] = {{vllm, "/tokenize"}, {llama_cpp, "/tokenize"}, {other, "/v1/completions"}};
  for (const auto& make : kMakes) {
    ScriptedServer server([&](Peer& peer, const HeardRequest& request) {
      peer.send(make.answer(request));
      return true;
    });
    const auto counter = server_counter(server.endpoint(), "m", Api::kCompletions, 10);
    ASSERT_TRUE(counter.ok()) << counter.status().message();
    EXPECT_EQ(*(*counter)->count("hello"), 6);
    EXPECT_THAT((*counter)->name(), HasSubstr(std::string(make.name)));
  }
}

TEST(ServerCounter, AChatIsCountedWithItsTemplateByUsage) {
  ScriptedServer server([](Peer& peer, const HeardRequest& r) {
    if (r.path != "/v1/chat/completions") {
      peer.send(json_answer({{"count", 1}}));
      return true;
    }
    const std::string text = r.json()["messages"][0]["content"];
    peer.send(json_answer({{"usage", {{"prompt_tokens", text.size() + 20}}}}));
    return true;
  });
  const auto counter = server_counter(server.endpoint(), "m", Api::kChat, 10);
  ASSERT_TRUE(counter.ok());
  EXPECT_EQ(*(*counter)->count("hello"), 25);
}

TEST(ServerCounter, OneSentenceWhereNobodyCounts) {
  json answer = {{"choices", json::array()}};
  std::string status = "200 OK";
  ScriptedServer server([&](Peer& peer, const HeardRequest& r) {
    peer.send(r.path == "/tokenize" ? json_answer({}, "404 Not Found")
                                    : json_answer(answer, status));
    return true;
  });
  const auto said = [&] {
    return server_counter(server.endpoint(), "m", Api::kCompletions, 10).status().message();
  };
  EXPECT_THAT(said(), HasSubstr("give --tokenizer MODEL or --prompts FILE"));
  answer = {{"error", {{"message", "no model m"}}}};
  status = "404 Not Found";
  EXPECT_THAT(said(), HasSubstr("answers 404 to a request for m: no model m"));
}

TEST(Facts, ModelsAndVersions) {
  ScriptedServer server([](Peer& peer, const HeardRequest& r) {
    if (r.path == "/v1/models") {
      peer.send(json_answer({{"data", {{{"id", "a"}}, {{"id", "b"}}, {{"no", 1}}}}}));
    } else if (r.path == "/props") {
      peer.send(json_answer({{"build_info", "b11434"}}));
    } else {
      peer.send(json_answer({}, "404 Not Found"));
    }
    return true;
  });
  const ServerFacts facts = *ask_facts(server.endpoint());
  EXPECT_THAT(facts.models, ElementsAre("a", "b"));
  EXPECT_EQ(facts.version, "b11434");
  EXPECT_EQ(ask_preemptions(server.endpoint()), std::nullopt);
}

TEST(Facts, AKeyThatIsWantedIsSaid) {
  ScriptedServer server([](Peer& peer, const HeardRequest&) {
    peer.send(json_answer({{"error", "key"}}, "401 Unauthorized"));
    return true;
  });
  EXPECT_THAT(ask_facts(server.endpoint()).status().message(), HasSubstr("wanted --api-key-file"));
}

// --- A server of our own: a shell, or python's own server, stands for it ---

bool runs(pid_t process) { return kill(process, 0) == 0; }

std::vector<std::string> small_server() {
  return {
      "python3", "-c",
      "import http.server, sys\n"
      "class H(http.server.BaseHTTPRequestHandler):\n"
      "  def do_GET(self):\n"
      "    self.send_response(200); self.send_header('Content-Length', '0'); self.end_headers()\n"
      "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n",
      "{port}"};
}

TEST(OwnServer, IsReadyWhenItStartsAndGoneAtItsEnd) {
  pid_t process = 0;
  {
    const auto server = OwnServer::start(small_server(), 60, {});
    ASSERT_TRUE(server.ok()) << server.status().message();
    process = (*server)->process();
    EXPECT_TRUE(runs(process));
    EXPECT_GT((*server)->peak_bytes(), 1 << 20);
    EXPECT_EQ(ask({.url = (*server)->url(), .api_key = ""}, "/health", "", 10)->status, 200);
    EXPECT_NE(getpgid(process), getpgid(0)) << "the terminal's Ctrl-C is ours alone";
  }
  EXPECT_FALSE(runs(process));
}

TEST(OwnServer, WhatItSaidLastIsInTheMessage) {
  const auto ended =
      OwnServer::start({"sh", "-c", "echo first; echo 'no such model' >&2; exit 2"}, 60, {});
  EXPECT_EQ(ended.status().message(), "the server ended: no such model");
  EXPECT_THAT(OwnServer::start({"/no/such/program"}, 60, {}).status().message(),
              HasSubstr("the program can't be run"));
  EXPECT_THAT(
      OwnServer::start({"sh", "-c", "echo loading; exec sleep 1000"}, 0.3, {}).status().message(),
      HasSubstr("wasn't ready after 0.3 s; it last said: loading"));
  EXPECT_EQ(OwnServer::start({"sleep", "1000"}, 60, [] { return true; }).status().code(),
            Code::kCancelled);
}

TEST(OwnServer, OneThatIgnoresTheRequestToEndIsKilled) {
  pid_t process = 0;
  {
    std::vector<std::string> words = small_server();
    words[2] = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + words[2];
    const auto server = OwnServer::start(words, 60, {});
    ASSERT_TRUE(server.ok()) << server.status().message();
    process = (*server)->process();
  }
  EXPECT_FALSE(runs(process));
}

TEST(OwnServer, DiesWithUsEvenByKill9) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const auto server = OwnServer::start(small_server(), 60, {});
    const pid_t child = server.ok() ? (*server)->process() : -1;
    [[maybe_unused]] const ssize_t n = write(pipe_ends[1], &child, sizeof child);
    for (;;) pause();
  }
  pid_t child = -1;
  ASSERT_EQ(read(pipe_ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_GT(child, 0);
  EXPECT_TRUE(runs(child));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  // Whoever inherits it reaps it some time; until then it is a zombie.
  const auto is_gone = [&] {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string pid, name, state;
    return !(stat >> pid >> name >> state) || state == "Z" || state == "X";
  };
  while (!is_gone()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace kvant::load
