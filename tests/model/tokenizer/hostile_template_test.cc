// Chat templates that want to hang, blow up or break out end with one sentence, in time (case H1).
#include <gtest/gtest.h>

#include <chrono>

#include "base/rng.h"
#include "goldens.h"
#include "model/chat/text.h"
#include "model/tokenizer.h"
#include "slow_build.h"

namespace kvant {
namespace {

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

Result<std::string> render(const std::string& source, int64_t max_work = ChatRequest().max_work) {
  const ChatMessage messages[] = {{"user", "hello"}};
  ChatRequest request;
  request.messages = messages;
  request.add_generation_prompt = true;
  request.max_work = max_work;
  return render_chat(source, request);
}

TEST(HostileTemplate, CaseH1_EndsInTimeWithOneSentence) {
  const std::string sources[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% for a in range(100000) %}{{ 'x' * 1000000 }}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for a in range(100) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for a in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% "
      "endfor %}{{ ns.s }}",
      "{% set ns = namespace(s=[1]) %}{% for a in range(99000) %}{% set ns.s = [ns.s] %}{% endfor "
      "%}",
      "{% set ns = namespace(s=[1]) %}{% for a in range(99000) %}{% for b in [ns.s] %}{% set ns.s "
      "= loop %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for a in range(60) %}{% set ns.s = {'a': ns.s, 'b': ns.s} "
      "%}{% endfor %}{{ ns.s | tojson }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
      "{{ 'x' * 9223372036854775807 }}",
      "{{ [1] * 9223372036854775807 }}",
      "{{ range(9223372036854775807) }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 2 ** 9223372036854775807 }}",
      "{{ (-9223372036854775807 - 1) // -1 }}",
      "{{ '%999999999d' % 'x' }}",
      "{{ 'aaaaaaaaaa'.replace('', 'b' * 10000000) }}",
      "{% set a = 'a' * 3000000 %}{{ a.replace('a', a) }}",
      "{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}",
      "{{ " + repeated("[", 5000) + repeated("]", 5000) + " }}",
      "{{ " + repeated("not ", 50000) + "1 }}",
      "{{ " + repeated("-", 50000) + "1 }}",
      "{{ 1" + repeated("+1", 100000) + " }}",
      "{{ a" + repeated(".a", 100000) + " }}",
      "{{ 1" + repeated("|abs", 100000) + " }}",
      "{{ 1" + repeated(" if 1 else 1", 100000) + " }}",
      repeated("{% if 1 %}", 20000),
      repeated("{% for a in [1] %}", 20000),
      "{% for x in messages[0].content * 100000 %}{{ loop.cycle('a') }}{% for y in range(1000) "
      "%}{% endfor %}{% endfor %}",
  };
  for (const std::string& source : sources) {
    const int64_t max_work = ChatRequest().max_work / (kSlowBuild ? 10 : 1);
    const Result<std::string> text = render(source, max_work);  // each within a second
    EXPECT_FALSE(text.ok()) << source.substr(0, 120);
    EXPECT_LT(text.status().message().size(), 400u) << text.status().message();
  }
}

// Steps whose cost is not in how many there are but in what each reads or makes.
TEST(HostileTemplate, CaseH1_ACheapStepOverALargeValueIsCounted) {
  std::string parameters, members;
  for (int i = 0; i < 3000; ++i) {
    parameters += (i == 0 ? "p" : ",p") + std::to_string(i);
    members += "'k" + std::to_string(i) + "':0,";
  }
  const std::pair<std::string, std::string> sources[] = {
      // what is set once, and the step
      {"{% set l = range(40000) | list %}", "{% set x = 1[l] %}"},
      {"{% set a = 'a' * 400000 %}{% set b = 'a' * 200000 + 'b' %}", "{% set x = b in a %}"},
      {"{% set a = 'a' * 400000 %}{% set b = 'a' * 200000 + 'b' %}", "{% set x = a.rfind(b) %}"},
      {"{% set a = 'a' * 400000 %}{% set b = 'a' * 200000 + 'b' %}", "{% set x = a.split(b) %}"},
      {"{% set a = 'a' * 400000 %}{% set b = 'a' * 200000 + 'b' %}",
       "{% set x = a | replace(b, '') %}"},
      {"{% set a = 'b' * 1000000 %}{% set b = 'a' * 1000000 + 'b' %}", "{% set x = a | trim(b) %}"},
      {"{% set a = 'x' * 10000000 %}", "{% set x = a % () %}"},
      {"{% set a = 'x' %}{% set b = ('y',) * 100000 %}", "{% set x = a.startswith(b) %}"},
      {"{% set d = {'K' * 1000000: 1} %}", "{% set x = d | dictsort %}"},
      {"{% set d = {" + members + "} %}{% set c = {" + members + "} %}", "{% set x = d == c %}"},
      {"{% set d = {" + members + "} %}", "{% set x = dict(d) %}"},
      {"{% set s = ['x' * 1000000, ':'] %}", "{% set x = ([1] * 60) | tojson(separators=s) %}"},
      {"{% set n = namespace(s='x' * 1000000) %}", "{% set x = [n] | sort(attribute='s') %}"},
      {"{% set p = 'x' * 1000000 %}", "{% set x = ([{}] * 60) | map(attribute=p) | list %}"},
      {"", "{% macro m(" + parameters + ") %}{% endmacro %}"},
      {"{% set k = ['x' * 1000000] %}{% set n = namespace(l=[]) %}",
       "{% set n.l = n.l + [1[k]] %}"},
  };
  constexpr int64_t kWork = 8'000'000;
  for (const auto& [once, step] : sources) {
    ASSERT_TRUE(render(once, kWork / 2).ok()) << once.substr(0, 80);
    const auto start = std::chrono::steady_clock::now();
    const Result<std::string> text =
        render(once + "{% for i in range(100000) %}{% for j in range(100000) %}" + step +
                   "{% endfor %}{% endfor %}",
               kWork);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(text.status().code(), Code::kExhausted) << text.status().message();
    EXPECT_LT(text.status().message().size(), 400u) << text.status().message();
    EXPECT_LT(taken.count(), 20.0) << step.substr(0, 80);
  }
}

TEST(HostileTemplate, FindingIsWhatTheStandardFinds) {
  Rng rng(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text(rng.below(14), 'a'), part(rng.below(6), 'a');
    for (char& c : text) c = "ab"[rng.below(2)];
    for (char& c : part) c = "ab"[rng.below(2)];
    const size_t from = rng.below(text.size() + 2);
    EXPECT_EQ(chat::find_text(text, part, from), text.find(part, from)) << text << " " << part;
    EXPECT_EQ(chat::rfind_text(text, part), text.rfind(part)) << text << " " << part;
  }
}

TEST(HostileTemplate, NamespacesInACircleAreFreed) {
  const Result<std::string> text = render(
      "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{% set a.l = [a, b] %}"
      "{% macro m() %}x{% endmacro %}{% set a.m = m %}{{ a.m() }}{{ a.b.a.b.a.m() }}");
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(*text, "xx");
}

TEST(HostileTemplate, UnsupportedConstructsNameTheirLine) {
  const std::pair<const char*, const char*> sources[] = {
      {"a\n{% include 'x' %}", "line 2: tag 'include'"},
      {"{% extends 'x' %}", "line 1: tag 'extends'"},
      {"\n\n{% block a %}{% endblock %}", "line 3: tag 'block'"},
      {"{{ 1 | nothing }}", "filter 'nothing'"},
      {"{% for a in [] recursive %}{% endfor %}", "recursive"},
      {"{{ f(*args) }}", "arguments by *"},
  };
  for (const auto& [source, wanted] : sources) {
    const Result<std::string> text = render(source);
    ASSERT_FALSE(text.ok()) << source;
    EXPECT_EQ(text.status().code(), Code::kCorrupt) << text.status().message();
    EXPECT_NE(text.status().message().find(wanted), std::string::npos) << text.status().message();
  }
}

TEST(HostileTemplate, ExtraMembersMustBeJson) {
  ChatMessage message{"user", "x"};
  message.extra_json = "{nonsense";
  EXPECT_EQ(render_chat("{{ 1 }}", std::span(&message, 1), true, "", "").status().code(),
            Code::kCorrupt);
}

TEST(HostileTemplate, FlippedBytesNeverCrash) {
  for (const char* name : {"llama3_tools.jinja", "mistral3.jinja", "qwen3.jinja", "gemma3.jinja"}) {
    const std::string good =
        test::read_bytes(std::filesystem::path(KVANT_TEST_DATA) / "templates" / name);
    Rng rng(5);
    for (int round = 0; round < 300; ++round) {
      std::string bad = good;
      for (int flips = 0; flips < 4; ++flips) {
        bad[rng.below(bad.size())] = "{%}#|-+()[]'\"ab1 \n.,~"[rng.below(22)];
      }
      if (round % 5 == 0) bad.resize(rng.below(bad.size()));
      (void)render(bad);
    }
  }
}

}  // namespace
}  // namespace kvant
