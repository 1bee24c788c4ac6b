// kvant load as a user runs it, against a server in this process.
#include <gmock/gmock.h>
#include <signal.h>

#include "load/scripted_server.h"
#include "run_program.h"
#include "tiny_chat_model.h"

namespace kvant::cli {
namespace {

using load::chunk;
using load::HeardRequest;
using load::Peer;
using load::ScriptedServer;
using ::testing::HasSubstr;
using ::testing::Not;
using json = nlohmann::json;

int words_in(const std::string& text) {
  return 1 + static_cast<int>(std::count(text.begin(), text.end(), ' '));
}

// What isn't a completion: one model, one token per word and BOS, a counter of preemptions.
bool answer_question(Peer& peer, const HeardRequest& request) {
  if (request.path == "/v1/models") {
    peer.send(load::json_answer({{"data", {{{"id", "toy"}}}}}));
  } else if (request.path == "/version") {
    peer.send(load::json_answer({{"version", "9.9"}}));
  } else if (request.path == "/metrics") {
    const std::string text = "toy:num_preemptions_total 3\n";
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" +
              text);
  } else if (request.path == "/tokenize") {
    peer.send(load::json_answer({{"count", words_in(request.json()["prompt"]) + 1}}));
  } else {
    return false;
  }
  return true;
}

// Answers with as many tokens as were asked for.
bool serve(Peer& peer, const HeardRequest& request) {
  if (answer_question(peer, request)) return true;
  const json body = request.json();
  peer.send(load::whole_stream(words_in(body["prompt"]) + 1, body["max_tokens"]));
  return true;
}

ProgramRun run_load(const ScriptedServer& server, std::vector<std::string> words) {
  words.insert(words.begin(), {"load", server.url()});
  return run_program(words);
}

TEST(Load, LevelsAsJson) {
  ScriptedServer server(serve);
  const ProgramRun run = run_load(
      server, {"--input-len", "16:32", "--output-len", "4", "--ignore-eos", "--requests", "6",
               "--concurrency", "1,3", "--warmup", "2", "--slo", "ttft=1m", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json report = run.json();
  EXPECT_EQ(report["servers"][0]["model"].get<std::string>(), "toy");
  EXPECT_EQ(report["servers"][0]["version"].get<std::string>(), "9.9");
  EXPECT_THAT(report["servers"][0]["prompts_counted_by"].get<std::string>(),
              HasSubstr("/tokenize"));
  EXPECT_EQ(report["settings"]["input_len"].get<std::string>(), "16:32");
  ASSERT_EQ(report["levels"].size(), 2u);
  for (const json& level : report["levels"]) {
    EXPECT_EQ(level["succeeded"].get<int>(), 6) << level["failures"];
    EXPECT_EQ(level["requests"].size(), 8u) << "the warm-ups are there, and marked";
    EXPECT_FALSE(level["requests"][1]["counted"].get<bool>());
    EXPECT_EQ(level["output_tokens"].get<int>(), 24);
    EXPECT_EQ(level["prompts_counted_otherwise"].get<int>(), 0);
    EXPECT_EQ(level["itl_s"]["count"].get<int>(), 18);
    EXPECT_EQ(level["preemptions"].get<int>(), 0);
    EXPECT_EQ(level["good_share"].get<double>(), 1);
    EXPECT_EQ(level["tokens_per_piece"].get<double>(), 1);
  }
  EXPECT_EQ(report["levels"][1]["concurrency"].get<int>(), 3);
}

TEST(Load, TheSameSeedSendsTheSameRequestsAndLevelsDiffer) {
  std::vector<std::vector<std::string>> sent;
  for (int i = 0; i < 2; ++i) {
    ScriptedServer server(serve);
    ASSERT_EQ(run_load(server, {"--requests", "5", "--concurrency", "1,1", "--output-len", "2"})
                  .exit_code,
              2)
        << "the same level twice is a slip of the hand";
    ASSERT_EQ(
        run_load(server, {"--requests", "5", "--rate", "500,501", "--output-len", "2"}).exit_code,
        0);
    std::vector<std::string>& bodies = sent.emplace_back();
    for (const HeardRequest& request : server.heard()) {
      if (request.path == "/v1/completions") bodies.push_back(request.body);
    }
    std::sort(bodies.begin(), bodies.end());
  }
  ASSERT_EQ(sent[0].size(), 10u);
  EXPECT_EQ(sent[0], sent[1]);
  EXPECT_EQ(std::unique(sent[0].begin(), sent[0].end()), sent[0].end());
}

TEST(Load, TheTableHasEveryFigureAndFailuresByKind) {
  std::atomic<int> turn{0};
  ScriptedServer server([&](Peer& peer, const HeardRequest& request) {
    if (answer_question(peer, request)) return true;
    if (turn++ % 2 == 0) return serve(peer, request);
    peer.send(load::json_answer({{"error", {{"message", "overloaded"}}}}, "503 Busy"));
    return true;
  });
  const ProgramRun run =
      run_load(server, {"--requests", "4", "--output-len", "3", "--slo", "ttft=1m"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* word :
       {"toy, version 9.9", "TTFT", "TPOT", "ITL", "E2E", "P50", "P99", "concurrency 1", "goodput",
        "0 preemptions", "failed: 2 (HTTP status 503 2)", "503 overloaded"})
    EXPECT_THAT(run.out, HasSubstr(word));
}

TEST(Load, EveryRequestFailingIsAFailure) {
  ScriptedServer server([](Peer& peer, const HeardRequest& request) {
    if (answer_question(peer, request)) return true;
    peer.send(load::json_answer({{"error", "no"}}, "500 Oops"));
    return true;
  });
  const ProgramRun run = run_load(server, {"--requests", "2"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("failed: 2 (HTTP status 500 2)"));
  EXPECT_EQ(run.err, "kvant: every request failed, the first: 500 no\n");
}

TEST(Load, CaseF2_TokensThatNobodyCountedAreSaidToBeMissing) {
  ScriptedServer server([](Peer& peer, const HeardRequest& request) {
    if (answer_question(peer, request)) return true;
    std::string body;
    for (int i = 0; i < 5; ++i) body += chunk(load::text_event("ab"));
    peer.send(load::kStreamHeader + body + chunk(load::kDone) + load::kLastChunk);
    return true;
  });
  ProgramRun run = run_load(server, {"--requests", "2"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("2 of 2 answers came without usage"));
  EXPECT_THAT(run.out, HasSubstr("- output tokens/s"));
  run = run_load(server, {"--requests", "2", "--tokenizer", tiny_chat_model(), "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json level = run.json()["levels"][0];
  EXPECT_EQ(level["output_tokens"].get<int>(), 20) << "ten bytes each, by the tokenizer";
  EXPECT_EQ(level["answers_counted_by_tokenizer"].get<int>(), 2);
  EXPECT_EQ(level["tokens_per_piece"].get<double>(), 2);
}

TEST(Load, CaseF2_FortySpacesOfUsageFortyAreForty) {
  ScriptedServer server([](Peer& peer, const HeardRequest& request) {
    if (answer_question(peer, request)) return true;
    std::string body;
    for (int i = 0; i < 40; ++i) body += chunk(load::text_event(" "));
    peer.send(load::kStreamHeader + body + chunk(load::usage_event(512, 40) + load::kDone) +
              load::kLastChunk);
    return true;
  });
  const ProgramRun run = run_load(server, {"--requests", "1", "--output-len", "40", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["levels"][0]["output_tokens"].get<int>(), 40);
}

TEST(Load, PromptsOfAFileAndAKeyGoToTheChatEndpoint) {
  ScriptedServer server([](Peer& peer, const HeardRequest& request) {
    if (answer_question(peer, request)) return true;
    peer.send(load::kStreamHeader + chunk(load::chat_event({{"content", "hi"}})) +
              chunk(load::usage_event(5, 1) + load::kDone) + load::kLastChunk);
    return true;
  });
  const std::string prompts = write_file(
      "prompts.jsonl",
      "{\"prompt\": \"a\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n");
  const std::string key = write_file("key", "secret\n");
  const ProgramRun run = run_load(
      server, {"--chat", "--prompts", prompts, "--api-key-file", key, "--requests", "3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out.find("secret"), run.out.npos);
  std::vector<std::string> contents;
  for (const HeardRequest& request : server.heard()) {
    if (request.path != "/v1/chat/completions") continue;
    EXPECT_EQ(request.authorization, "Bearer secret");
    contents.push_back(request.json()["messages"][0]["content"]);
  }
  EXPECT_EQ(contents, (std::vector<std::string>{"a", "b", "a"}));
}

TEST(Load, CtrlCEndsWithTheTableOfWhatWasMeasured) {
  const std::string pid_file = (scratch() / "load-pid").string();
  std::filesystem::remove(pid_file);
  std::atomic<int> completions{0};
  ScriptedServer server([&](Peer& peer, const HeardRequest& request) {
    if (answer_question(peer, request)) return true;
    const int turn = completions++;
    if (turn < 3) return serve(peer, request);
    if (turn == 4) kill(std::stoi(slurp(pid_file)), SIGINT);  // three are done, two are under way
    peer.wait_for_end();
    return false;
  });
  const ProgramRun run = run_shell(command_line({"load", server.url(), "--requests", "50",
                                                 "--concurrency", "2", "--output-len", "3"}) +
                                   " & echo $! >" + quoted(pid_file) + "; wait $!");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("3 requests in"));
  EXPECT_THAT(run.out, HasSubstr("2 requests under way at the interrupt aren't counted"));
  EXPECT_EQ(run.err, "kvant: interrupted; 3 requests were measured until then\n");
}

TEST(Load, TheSearchSaysWhyItStopped) {
  {
    ScriptedServer server(serve);
    const ProgramRun run = run_load(server, {"--find-max", "--max-concurrency", "4", "--requests",
                                             "4", "--output-len", "2", "--slo", "ttft=1m"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("largest stable concurrency 4; 4 is the most"));
  }
  std::atomic<int> turn{0};
  ScriptedServer server([&](Peer& peer, const HeardRequest& request) {
    if (answer_question(peer, request)) return true;
    if (turn++ > 0) return false;
    return serve(peer, request);
  });
  const ProgramRun run = run_load(server, {"--find-max", "--requests", "2", "--output-len", "2",
                                           "--slo", "ttft=1m,failures=10%", "--json"});
  EXPECT_THAT(run.json()["searches"][0]["reason"].get<std::string>(),
              HasSubstr("at 1: 100 % of the requests failed, limit 10 %"));
  EXPECT_EQ(run.json()["searches"][0]["max_concurrency"].get<int>(), 0);
}

TEST(Load, CaseH1_OneSentenceForEveryBadWord) {
  ScriptedServer server(serve);
  const std::string url = server.url(), empty = write_file("empty.jsonl", "\n");
  const struct {
    std::vector<std::string> words;
    std::string_view said;
  } kCases[] = {
      {{"https://a"}, "https isn't spoken here"},
      {{"ftp://a"}, "wanted http://HOST:PORT"},
      {{url, "--slo", "ttft=fast"}, "wanted a time, as in ttft=100ms or 2s"},
      {{url, "--slo", "failures=1%"}, "wanted one, as in ttft=2s"},
      {{url, "--prompts", empty}, "has no prompts"},
      {{url, "--prompts", "/no/such.jsonl"}, "can't be read"},
      {{url, "--prompts", empty, "--input-len", "5"}, "--prompts and --input-len were both given"},
      {{url, "--input-len", "9:3"}, "--input-len 9:3"},
      {{url, "--input-len", "1"}, "wanted at least 2"},
      {{url, "--output-len", "0"}, "--output-len 0"},
      {{url, "--concurrency", "0"}, "wanted whole numbers from 1 to 65536"},
      {{url, "--concurrency", "1x"}, "wanted whole numbers from 1 to 65536"},
      {{url, "--rate", "0"}, "wanted requests a second"},
      {{url, "--rate", "nan"}, "wanted requests a second"},
      {{url, "--rate", "1", "--concurrency", "1"}, "wanted one of them"},
      {{url, "--find-max"}, "--find-max has no limits to keep"},
      {{url, "--find-max", "--slo", "ttft=1s", "--rate", "1"},
       "the search chooses the concurrency"},
      {{url, "--max-concurrency", "5"}, "is where --find-max ends"},
      {{url, "--duration", "0"}, "--duration 0"},
      {{url, "--shared-prefix", "1.5"}, "--shared-prefix 1.5"},
      {{url, "--serve-options", "x"}, "are for the servers that --matrix starts"},
      {{url, "--matrix", "kv=bf16"}, "wanted a MODEL"},
      {{"m.gguf", "--matrix", "bf16"}, "wanted kv= and formats by comma"},
      {{"m.gguf", "--matrix", "kv="}, "an item is empty"},
      {{"/no/such.gguf", "--matrix", "kv=bf16"}, "doesn't exist"},
      {{url, "--api-key-file", empty}, "is empty, wanted a key"},
      {{url, "--api-key-file", write_file("two", "a b")}, "a blank or an unprintable character"},
      {{url, "--tokenizer", "/no/such.gguf"}, "doesn't exist"},
  };
  for (const auto& c : kCases) {
    std::vector<std::string> words = {"load"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.exit_code, 2) << c.words.back() << run.err;
    EXPECT_EQ(run.err_lines(), 1u) << run.err;
    EXPECT_THAT(run.err, HasSubstr(std::string(c.said)));
    EXPECT_EQ(run.out, "");
  }
}

TEST(Load, AMatrixStartsAServerPerFormatAndLeavesNone) {
  if (run_program({"serve", "--help"}).exit_code != 0)
    GTEST_SKIP() << "this build has no kvant serve";
  const ProgramRun run =
      run_program({"load", tiny_chat_model(), "--matrix", "kv=bf16,int8", "--input-len", "16,32",
                   "--output-len", "4", "--requests", "3", "--ignore-eos", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json report = run.json();
  ASSERT_EQ(report["servers"].size(), 2u);
  EXPECT_EQ(report["servers"][1]["kv"].get<std::string>(), "int8");
  EXPECT_GT(report["servers"][1]["peak_bytes"].get<int64_t>(), 1 << 20);
  ASSERT_EQ(report["levels"].size(), 4u);
  for (const json& level : report["levels"]) {
    EXPECT_EQ(level["succeeded"].get<int>(), 3) << level["failures"];
    EXPECT_EQ(level["output_tokens"].get<int>(), 12);
    EXPECT_EQ(level["prompts_counted_otherwise"].get<int>(), 0);
  }
  const std::string url = report["servers"][0]["url"];
  EXPECT_EQ(run_program({"load", url}).exit_code, 1) << "nobody listens there any more";
}

TEST(Load, TheHelpInTheDocsIsTheProgramsOwn) {
  const std::string page = slurp(KVANT_TEST_DATA "/../../docs/load.md");
  EXPECT_THAT(page, HasSubstr(run_program({"load", "--help"}).out));
}

TEST(Load, AServerThatIsntThereIsOneSentence) {
  const ProgramRun run = run_program({"load", "http://127.0.0.1:1"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.err, "kvant: http://127.0.0.1:1 can't be reached: Connection refused\n");
}

}  // namespace
}  // namespace kvant::cli
