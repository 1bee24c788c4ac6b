// What is served to many at once is what the engine gives each alone: the same tokens, texts and
// bits of log-probabilities, whatever the batch, the prefix cache and the pool.
#include <algorithm>
#include <atomic>
#include <bit>
#include <future>

#include "base/rng.h"
#include "engine/engine.h"
#include "model/tokenizer/unicode.h"
#include "server/served_model.h"

namespace kvant::server {
namespace {

using nlohmann::json;

constexpr uint64_t kSeed = 71;
constexpr size_t kRequests = 200;
constexpr int kConcurrency = 16;

// A request as the API has it and as the engine takes it, neither made from the other.
struct MixedRequest {
  std::string path;
  json body;
  GenerationRequest engine;
};

// One answer.
struct Told {
  std::vector<std::string> tokens;
  std::vector<uint64_t> logprobs;  // bits of doubles
  std::string text;
  std::string finish;
  bool operator==(const Told&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Told& told) {
  for (const std::string& token : told.tokens) out << token << ' ';
  return out << '(' << told.finish << ')';
}

std::string random_text(Rng& rng, size_t length) {
  std::string out;
  for (size_t i = 0; i < length; ++i) out += static_cast<char>('a' + rng.below(26));
  return out;
}

// Of the tiny model: <s> and then a token a byte.
std::vector<int32_t> tokens_of(std::string_view text) {
  std::vector<int32_t> out = {256};
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

void mix_sampling(Rng& rng, MixedRequest& r) {
  SamplingParams& s = r.engine.sampling;
  if (rng.below(3) > 0) s.temperature = 0.5 + rng.uniform();
  s.seed = rng.below(1000);
  if (rng.below(3) == 0) s.top_k = static_cast<int>(1 + rng.below(40));
  if (rng.below(3) == 0) s.top_p = 0.7 + 0.3 * rng.uniform();
  if (rng.below(3) == 0) s.min_p = 0.2 * rng.uniform();
  if (rng.below(3) == 0) s.repeat_penalty = 1 + rng.uniform();
  r.body["temperature"] = s.temperature;
  r.body["seed"] = s.seed;
  if (s.top_k) r.body["top_k"] = *s.top_k;
  r.body["top_p"] = s.top_p;
  r.body["min_p"] = s.min_p;
  r.body["repetition_penalty"] = s.repeat_penalty;
}

void mix_ends(Rng& rng, MixedRequest& r) {
  r.engine.max_tokens = static_cast<int64_t>(1 + rng.below(60));
  r.engine.ignore_end = rng.below(2) == 0;
  if (rng.below(4) == 0) r.engine.min_tokens = r.engine.max_tokens / 2;
  for (uint64_t i = rng.below(4); i > 0; --i) r.engine.stop.push_back(random_text(rng, 1));
  r.engine.num_samples = rng.below(4) == 0 ? 3 : 1;
  r.body["max_tokens"] = r.engine.max_tokens;
  r.body["ignore_eos"] = r.engine.ignore_end;
  r.body["min_tokens"] = r.engine.min_tokens;
  if (!r.engine.stop.empty()) r.body["stop"] = r.engine.stop;
  r.body["n"] = r.engine.num_samples;
}

std::vector<MixedRequest> mixed_requests(Rng& rng) {
  // What half of the prompts begin with: whole pages and not.
  const std::string beginnings[] = {random_text(rng, 63), random_text(rng, 100),
                                    random_text(rng, 128)};
  std::vector<MixedRequest> out(kRequests);
  for (MixedRequest& r : out) {
    std::string prompt = rng.below(2) == 0 ? beginnings[rng.below(3)] : "";
    prompt += random_text(rng, 1 + rng.below(60));
    const bool is_chat = rng.below(3) == 0;
    r.path = is_chat ? "/v1/chat/completions" : "/v1/completions";
    if (is_chat) {
      r.body["messages"] = {{{"role", "user"}, {"content", prompt}}};
      r.body["logprobs"] = true;
      r.engine.prompt = tokens_of("user: " + prompt + "\n");
    } else {
      r.engine.prompt = tokens_of(prompt);
      rng.below(2) == 0 ? r.body["prompt"] = prompt : r.body["prompt"] = r.engine.prompt;
      r.body["logprobs"] = 0;
    }
    r.engine.logprobs = 0;
    if (rng.below(4) == 0) r.body["cache_salt"] = r.engine.cache_salt = "another tenant";
    r.body["stream"] = rng.below(2) == 0;
    mix_sampling(rng, r);
    mix_ends(rng, r);
  }
  return out;
}

// As the API spells a token.
std::string spelled(int32_t id) {
  const Tokenizer& tokenizer = tiny_model().model().tokenizer();
  if (tokenizer.is_special(id)) return std::string(tokenizer.piece(id));
  std::string bytes = tokenizer.token_bytes(id, false);
  if (tokenizer::is_valid_utf8(bytes)) return bytes;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', 'x', kHex[byte / 16], kHex[byte % 16]};
  }
  return out;
}

// By the engine, one request at a time, on a cache of its own that keeps no prefixes.
std::vector<std::vector<Told>> answers_alone(const std::vector<MixedRequest>& requests) {
  const auto cache = tiny_model().cache(tiny_model().cache_options(false));
  Engine engine(tiny_model().model(), *cache, {.chunk = 64});
  std::vector<std::vector<Told>> out;
  for (const MixedRequest& r : requests) {
    std::vector<Told>& told = out.emplace_back(static_cast<size_t>(r.engine.num_samples));
    EXPECT_TRUE(engine.submit(r.engine).ok());
    while (!engine.idle()) {
      for (const GenerationEvent& event : engine.step()) {
        Told& t = told[static_cast<size_t>(event.sample)];
        t.tokens.push_back(spelled(event.token.value()));
        t.logprobs.push_back(std::bit_cast<uint64_t>(double{event.logprobs->chosen.logprob}));
        t.text += event.text;
        if (event.finish != FinishReason::kRunning) t.finish = finish_reason_name(event.finish);
      }
    }
  }
  return out;
}

// Adds what a choice says: a whole one, or a stream's piece of it.
void add_choice(const json& choice, Told& told) {
  if (choice.contains("text")) told.text += choice["text"].get<std::string>();
  for (const char* part : {"message", "delta"}) {
    if (choice.contains(part)) told.text += choice[part].value("content", "");
  }
  if (!choice["finish_reason"].is_null()) told.finish = choice["finish_reason"].get<std::string>();
  const json& logprobs = choice["logprobs"];
  if (logprobs.is_null()) return;
  const auto add = [&](const json& token, const json& logprob) {
    told.tokens.push_back(token.get<std::string>());
    told.logprobs.push_back(std::bit_cast<uint64_t>(logprob.get<double>()));
  };
  if (logprobs.contains("content")) {
    for (const json& token : logprobs["content"]) add(token["token"], token["logprob"]);
  } else {
    for (size_t i = 0; i < logprobs["tokens"].size(); ++i)
      add(logprobs["tokens"][i], logprobs["token_logprobs"][i]);
  }
}

std::vector<Told> ask(const RunningServer& server, const MixedRequest& r) {
  const HttpAnswer answer = post(server, r.path, r.body);
  EXPECT_EQ(answer.code, 200) << r.body << "\n" << answer.body;
  std::vector<Told> told(static_cast<size_t>(r.engine.num_samples));
  if (answer.code != 200) return told;
  std::vector<std::string> parts = {answer.body};
  if (r.body["stream"].get<bool>()) {
    parts = answer.events();
    EXPECT_EQ(parts.back(), "[DONE]");
    parts.pop_back();
  }
  for (const std::string& part : parts) {
    const json parsed = json::parse(part);
    for (const json& choice : parsed.at("choices"))
      add_choice(choice, told.at(choice["index"].get<size_t>()));
  }
  return told;
}

double metric(const RunningServer& server, const std::string& name) {
  const std::string text = get(server, "/metrics").body;
  const size_t at = text.find("\n" + name + "{");
  return at == text.npos ? -1 : std::stod(text.substr(text.find('}', at) + 1));
}

// Issue 7: 200 requests of mixed lengths and parameters in random order, sixteen at once.
TEST(SameTokens, CaseE5_SixteenAtOnceGetWhatEachWouldAlone) {
  Rng rng(kSeed);
  const std::vector<MixedRequest> requests = mixed_requests(rng);
  const std::vector<std::vector<Told>> alone = answers_alone(requests);
  const uint64_t of_one = tiny_model().cache(tiny_model().cache_options())->bytes_at(256);
  for (const bool prefix_cache : {true, false}) {
    for (const uint64_t max_bytes : {uint64_t{0}, of_one * 2}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", prefix cache " << prefix_cache
                                      << ", pool of " << max_bytes << " bytes");
      std::vector<size_t> order(requests.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[rng.below(i + 1)]);
      // The small pool's answers are swapped out as far as there is memory, then computed again.
      RunningServer server({.cache = tiny_model().cache_options(prefix_cache, max_bytes),
                            .service = {.engine = {.chunk = 64, .max_swap_bytes = of_one}}});
      std::vector<std::vector<Told>> together(requests.size());
      std::atomic<size_t> next = 0;
      std::vector<std::future<void>> clients;
      for (int c = 0; c < kConcurrency; ++c) {
        clients.push_back(std::async(std::launch::async, [&] {
          for (size_t i = next++; i < order.size(); i = next++)
            together[order[i]] = ask(server, requests[order[i]]);
        }));
      }
      for (std::future<void>& client : clients) client.get();
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(together[i], alone[i]) << "request " << i << ": " << requests[i].body;
      // The run was what it is meant to be.
      EXPECT_EQ(metric(server, "kvant:prefix_cache_hits_total") > 0, prefix_cache);
      EXPECT_EQ(metric(server, "kvant:num_preemptions_total") > 0, max_bytes > 0);
      EXPECT_EQ(metric(server, "kvant:num_recomputations_total") > 0, max_bytes > 0);
      EXPECT_GE(metric(server, "kvant:num_preemptions_total"),
                metric(server, "kvant:num_recomputations_total"));
      server.stop();
      EXPECT_EQ(server.cache().usage().live_bytes, server.cache().usage().cached_bytes);
      EXPECT_TRUE(server.cache().check_invariants().ok());
    }
  }
}

}  // namespace
}  // namespace kvant::server
