// The client against a server that does what a test says. What is timed is timed by a clock that
// the server sets; nothing here depends on how long anything takes.
#include "load/http.h"

#include <gmock/gmock.h>

#include <set>

#include "load/summary.h"
#include "scripted_server.h"

namespace kvant::load {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<FilePrompt> one_prompt() {
  return {{.prompt = "hello", .messages = "", .max_tokens = {}}};
}

class Client {
 public:
  explicit Client(const ScriptedServer& server, int64_t requests = 1, int64_t concurrency = 1) {
    options.server = server.endpoint();
    options.level.concurrency = concurrency;
    options.max_requests = requests;
    options.timeout_s = 60;
  }
  Driven run() {
    const std::vector<FilePrompt> prompts = one_prompt();
    const Workload workload({.api = options.api,
                             .model = "m",
                             .input = {},
                             .output = {output, output},
                             .shared_prefix = 0,
                             .ignore_eos = options.exact_tokens,
                             .seed = 1,
                             .level = 0},
                            prompts);
    Result<Driven> driven = drive(options, workload);
    EXPECT_TRUE(driven.ok()) << driven.status().message();
    return driven.ok() ? std::move(driven).value() : Driven();
  }
  RequestRecord run_one() {
    Driven driven = run();
    EXPECT_EQ(driven.records.size(), 1u);
    return driven.records.empty() ? RequestRecord() : driven.records[0];
  }

  DriveOptions options;
  int64_t output = 8;
};

TEST(Drive, CaseF1_AFixedScheduleGivesTheExactTable) {
  ManualClock clock;
  ScriptedServer server([&](Peer& peer, const HeardRequest&) {
    peer.send(kStreamHeader);
    const auto at = [&](double ms, const std::string& bytes) {
      clock.set_ms(ms);
      const int64_t before = clock.readings();
      peer.send(chunk(bytes));
      clock.wait_for_reading_after(before);
    };
    at(100, text_event("a"));
    for (int i = 1; i < 5; ++i) at(100 + 10 * i, text_event("b"));
    at(160, text_event("cd"));  // two tokens in one chunk
    at(300, finish_event() + usage_event(10, 7));
    at(400, kDone);
    peer.send(kLastChunk);
    return true;
  });
  Client client(server);
  client.options.now_ns = clock.reader();
  const Driven driven = client.run();
  clock.abandon();
  const LevelSummary s = summarize(driven.records, *parse_slo("ttft=100ms,itl=20ms"), {});
  ASSERT_EQ(s.succeeded, 1) << s.first_failure;
  EXPECT_DOUBLE_EQ(s.ttft.p99, 0.1);
  EXPECT_DOUBLE_EQ(s.e2e.mean, 0.16);
  EXPECT_DOUBLE_EQ(s.tpot.mean, 0.01);
  EXPECT_EQ(s.itl.count, 5);
  EXPECT_DOUBLE_EQ(s.itl.mean, 0.012);
  EXPECT_DOUBLE_EQ(s.itl.max, 0.02);
  EXPECT_DOUBLE_EQ(s.seconds, 0.4);
  EXPECT_DOUBLE_EQ(*s.output_rate, 17.5);
  EXPECT_DOUBLE_EQ(*s.good_share, 1);
}

TEST(Drive, AnswersOfEveryFramingAreRead) {
  const std::string body =
      text_event("a") + text_event("b") + finish_event() + usage_event(3, 2) + kDone;
  const std::string type = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
  std::string bytewise = kStreamHeader;
  for (char c : body) bytewise += chunk(std::string(1, c));
  const struct {
    const char* name;
    std::string bytes;
    bool stays;
  } kFramings[] = {
      {"chunked", kStreamHeader + chunk(body) + kLastChunk, true},
      {"a chunk a byte", bytewise + kLastChunk, true},
      {"chunk extensions and trailers",
       kStreamHeader + "3;x=y\r\n" + body.substr(0, 3) + "\r\n" + chunk(body.substr(3)) +
           "0\r\nX-Sum: 1\r\n\r\n",
       true},
      {"a length", type + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body,
       true},
      {"until the connection ends", type + "Connection: close\r\n\r\n" + body, false},
      {"HTTP/1.0", "HTTP/1.0 200 OK\r\n\r\n" + body, false},
  };
  for (const auto& framing : kFramings) {
    ScriptedServer server([&](Peer& peer, const HeardRequest&) {
      peer.send(framing.bytes);
      return framing.stays;
    });
    const Driven driven = Client(server, 3).run();
    ASSERT_EQ(driven.records.size(), 3u);
    for (const RequestRecord& r : driven.records) {
      EXPECT_EQ(r.outcome, Outcome::kSuccess) << framing.name << ": " << r.detail;
      EXPECT_EQ(r.gaps_ns.size(), 1u) << framing.name;
      EXPECT_EQ(r.usage->completion_tokens, 2) << framing.name;
    }
    EXPECT_EQ(server.connections(), framing.stays ? 1 : 3) << framing.name;
  }
}

TEST(Drive, BytesThatTheNetworkCutsAreTheSameAnswer) {
  const std::string bytes = kStreamHeader + chunk(text_event("caf\xc3\xa9 \xf0\x9f\x98\x80")) +
                            chunk(usage_event(3, 2) + kDone) + kLastChunk;
  ScriptedServer server([&](Peer& peer, const HeardRequest&) {
    for (char c : bytes) {
      peer.send(std::string(1, c));
      std::this_thread::yield();
    }
    return true;
  });
  Client client(server);
  client.options.keep_text = KeepText::kYes;
  const RequestRecord r = client.run_one();
  EXPECT_EQ(r.outcome, Outcome::kSuccess) << r.detail;
  EXPECT_EQ(r.text, "caf\xc3\xa9 \xf0\x9f\x98\x80");
}

TEST(Drive, WhatIsSentIsARequestOfTheApi) {
  ScriptedServer server([](Peer& peer, const HeardRequest&) {
    peer.send(whole_stream(3, 2));
    return true;
  });
  Client client(server);
  client.options.server.api_key = "secret";
  client.options.server.url.prefix = "/proxy";
  client.run();
  client.options.api = Api::kChat;
  client.run();
  const std::vector<HeardRequest> heard = server.heard();
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[0].path, "/proxy/v1/completions");
  EXPECT_EQ(heard[0].authorization, "Bearer secret");
  EXPECT_EQ(heard[0].json()["prompt"].get<std::string>(), "hello");
  EXPECT_EQ(heard[1].path, "/proxy/v1/chat/completions");
  EXPECT_EQ(heard[1].json()["messages"][0]["content"].get<std::string>(), "hello");
}

TEST(Drive, EveryFailureIsOfItsKind) {
  const struct {
    std::string bytes;
    bool reset;
    Outcome outcome;
    std::string_view detail;
  } kCases[] = {
      {json_answer({{"error", {{"message", "too long"}}}}, "400 Bad Request"), false,
       Outcome::kStatus, "400 too long"},
      {"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", false, Outcome::kStatus,
       "503"},
      {"HTTP/1.1 204 No Content\r\n\r\n", false, Outcome::kStatus, "204"},
      {"", false, Outcome::kEarlyClose, "before an answer began"},
      {"", true, Outcome::kEarlyClose, "before an answer began"},
      {"HTTP/1.1 200 OK\r\nContent-", false, Outcome::kEarlyClose, "before an answer began"},
      {kStreamHeader, false, Outcome::kEarlyClose, "before its first token"},
      {kStreamHeader + chunk(text_event("a")), false, Outcome::kEarlyClose,
       "before its last token"},
      {kStreamHeader + chunk(text_event("a")), true, Outcome::kEarlyClose, "before its last token"},
      {kStreamHeader + chunk(text_event("a")) + kLastChunk, false, Outcome::kEarlyClose,
       "before its last token"},
      {kStreamHeader + "zz\r\n", false, Outcome::kMalformed, "no HTTP"},
      {"SSH-2.0-OpenSSH\r\n\r\n", false, Outcome::kMalformed, "no HTTP"},
      {kStreamHeader + chunk("data: {\n\n") + kLastChunk, false, Outcome::kMalformed, "no JSON"},
      {json_answer({{"choices", nlohmann::json::array()}}), false, Outcome::kMalformed,
       "event stream"},
      {kStreamHeader + chunk("data: {\"error\": {\"message\": \"out of pages\"}}\n\n") + kLastChunk,
       false, Outcome::kErrorEvent, "out of pages"},
      {whole_stream(3, 9), false, Outcome::kWrongCount, "9 tokens, wanted at most 8"},
  };
  for (const auto& c : kCases) {
    ScriptedServer server([&](Peer& peer, const HeardRequest&) {
      peer.send(c.bytes);
      if (c.reset) peer.reset();
      return false;
    });
    const RequestRecord r = Client(server).run_one();
    EXPECT_EQ(r.outcome, c.outcome) << c.bytes << "\n"
                                    << outcome_name(r.outcome) << " " << r.detail;
    EXPECT_THAT(r.detail, HasSubstr(std::string(c.detail))) << c.bytes;
    EXPECT_GE(r.ended_ns, r.sent_ns);
  }
}

TEST(Drive, NobodyListensAtTheOtherEnd) {
  Endpoint gone;
  {
    ScriptedServer server([](Peer&, const HeardRequest&) { return false; });
    gone = server.endpoint();
  }
  ScriptedServer other([](Peer&, const HeardRequest&) { return false; });
  Client client(other, 2);
  client.options.server = gone;
  const Driven driven = client.run();
  for (const RequestRecord& r : driven.records) EXPECT_EQ(r.outcome, Outcome::kConnect) << r.detail;
  EXPECT_EQ(driven.records.size(), 2u);
  client.options.server.url.host = "no.such.host.invalid";
  const std::vector<FilePrompt> prompts = one_prompt();
  const Result<Driven> none = drive(client.options, Workload({}, prompts));
  EXPECT_EQ(none.status().code(), Code::kIo);
  EXPECT_THAT(none.status().message(), HasSubstr("no.such.host.invalid can't be resolved"));
}

TEST(Drive, SilenceEndsAtTheTimeOut) {
  for (const std::string& first :
       {std::string(), kStreamHeader, kStreamHeader + chunk(text_event("a"))}) {
    ScriptedServer server([&](Peer& peer, const HeardRequest&) {
      peer.send(first);
      peer.wait_for_end();
      return false;
    });
    Client client(server);
    client.options.timeout_s = 0.2;
    const RequestRecord r = client.run_one();
    EXPECT_EQ(r.outcome, Outcome::kTimeout) << first << r.detail;
    EXPECT_EQ(r.first_ns >= 0, first.size() > kStreamHeader.size());
  }
}

TEST(Drive, ABodyThatDoesntEndBehindDoneCostsNothing) {
  ScriptedServer server([](Peer& peer, const HeardRequest&) {
    peer.send(kStreamHeader + chunk(text_event("a")) + chunk(usage_event(3, 1) + kDone));
    peer.wait_for_end();  // no last chunk ever
    return false;
  });
  EXPECT_EQ(Client(server).run_one().outcome, Outcome::kSuccess);
}

TEST(Drive, AConnectionThatTheServerClosedInTheMeantimeIsNoFailure) {
  ScriptedServer server([](Peer& peer, const HeardRequest&) {
    peer.send(whole_stream(3, 2));  // keep-alive, so to speak,
    return false;                   // and yet it closes
  });
  const Driven driven = Client(server, 20).run();
  for (const RequestRecord& r : driven.records) EXPECT_EQ(r.outcome, Outcome::kSuccess) << r.detail;
  EXPECT_EQ(server.connections(), 20);
}

TEST(Drive, AClosedLoopHasSoManyUnderWayAndNeverMore) {
  std::atomic<int> under_way{0}, most{0};
  ScriptedServer server([&](Peer& peer, const HeardRequest&) {
    const int now = ++under_way;
    int seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    // The first eight answer only when all eight are here, so that eight there must be.
    while (most < 8) std::this_thread::yield();
    --under_way;
    peer.send(whole_stream(3, 2));
    return true;
  });
  const Driven driven = Client(server, 60, 8).run();
  EXPECT_EQ(most, 8);
  EXPECT_EQ(driven.records.size(), 60u);
  EXPECT_EQ(server.connections(), 8);
  for (size_t i = 0; i < driven.records.size(); ++i) {
    EXPECT_EQ(driven.records[i].index, static_cast<int64_t>(i));
    EXPECT_EQ(driven.records[i].outcome, Outcome::kSuccess) << driven.records[i].detail;
  }
}

TEST(Drive, AnOpenLoopDoesntWaitForTheServer) {
  // Nobody is answered until all twenty are here.
  std::atomic<int> here{0};
  ScriptedServer server([&](Peer& peer, const HeardRequest&) {
    ++here;
    while (here < 20) std::this_thread::yield();
    peer.send(whole_stream(3, 2));
    return true;
  });
  Client client(server, 20);
  client.options.level = {.concurrency = 0, .rate = 1000};
  const Driven driven = client.run();
  EXPECT_EQ(driven.records.size(), 20u);
  for (const RequestRecord& r : driven.records) EXPECT_EQ(r.outcome, Outcome::kSuccess) << r.detail;
  EXPECT_EQ(server.connections(), 20);
}

TEST(Drive, AnOpenLoopOfADurationHasTheArrivalsOfItsSeed) {
  ScriptedServer server([](Peer& peer, const HeardRequest&) {
    peer.send(whole_stream(3, 2));
    return true;
  });
  Client client(server, 0);
  client.options.level = {.concurrency = 0, .rate = 200};
  client.options.duration_s = 0.2;
  client.options.warmup = 5;
  const size_t requests = client.run().records.size();
  EXPECT_EQ(client.run().records.size(), requests) << "however fast this machine is";
  EXPECT_GT(requests, 20u);
  EXPECT_LT(requests, 100u);
}

TEST(Drive, WarmUpsGoFirstAndAreMarked) {
  ScriptedServer server([](Peer& peer, const HeardRequest&) {
    peer.send(whole_stream(3, 2));
    return true;
  });
  Client client(server, 4, 2);
  client.options.warmup = 3;
  const Driven driven = client.run();
  ASSERT_EQ(driven.records.size(), 7u);
  for (const RequestRecord& r : driven.records) EXPECT_EQ(r.counted, r.index >= 3);
}

TEST(Drive, AnInterruptEndsTheRunAndKeepsWhatIsWhole) {
  std::atomic<int> answered{0};
  ScriptedServer server([&](Peer& peer, const HeardRequest&) {
    if (answered.fetch_add(1) >= 3) {
      peer.wait_for_end();
      return false;
    }
    peer.send(whole_stream(3, 2));
    return true;
  });
  Client client(server, 100, 2);
  client.options.on_tick = [&](const DriveProgress& p) { return p.done < 3 || p.running < 2; };
  const Driven driven = client.run();
  EXPECT_TRUE(driven.interrupted);
  ASSERT_EQ(driven.records.size(), 5u);
  const LevelSummary s = summarize(driven.records, Slo(), {});
  EXPECT_EQ(s.succeeded, 3);
  EXPECT_EQ(s.cut_off, 2);
  EXPECT_EQ(s.failed, 0);
}

TEST(Drive, ManyConnectionsAtOnce) {
  constexpr int kAll = 300;
  std::atomic<int> here{0};
  ScriptedServer server([&](Peer& peer, const HeardRequest&) {
    ++here;
    while (here < kAll) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    peer.send(whole_stream(3, 3));
    return true;
  });
  const Driven driven = Client(server, kAll, kAll).run();
  const LevelSummary s = summarize(driven.records, Slo(), {});
  EXPECT_EQ(s.succeeded, kAll) << s.first_failure;
  EXPECT_EQ(s.output_tokens, 3 * kAll);
}

TEST(Ask, AnyStatusIsAnAnswerAndNoneIsASentence) {
  ScriptedServer server([](Peer& peer, const HeardRequest& request) {
    peer.send(
        json_answer({{"path", request.path}}, request.path == "/a" ? "200 OK" : "404 Not Found"));
    return false;
  });
  EXPECT_EQ(ask(server.endpoint(), "/a", "", 10)->status, 200);
  EXPECT_EQ(ask(server.endpoint(), "/b", "{}", 10)->status, 404);
  EXPECT_THAT(ask(server.endpoint(), "/b", "{}", 10)->body, HasSubstr("/b"));
  Endpoint gone = server.endpoint();
  gone.url.port = 1;
  const Status status = ask(gone, "/", "", 10).status();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_THAT(status.message(),
              HasSubstr("http://127.0.0.1:1 can't be reached: Connection refused"));
}

}  // namespace
}  // namespace kvant::load
