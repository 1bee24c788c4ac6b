// Runs of kvant plan, on configurations made in front of the reader or published ones.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "run_program.h"

namespace kvant::cli {

using nlohmann::json;
using Words = std::vector<std::string>;

inline std::string published(const std::string& name) {
  return KVANT_TEST_DATA "/configs/" + name + ".json";
}

// Two layers of 4 heads of 16 channels: 512 bytes a token in 16 bits.
inline json small() {
  return {{"model_type", "llama"},
          {"hidden_size", 64},
          {"num_attention_heads", 4},
          {"num_hidden_layers", 2}};
}
inline json with(json config, const json& fields) {
  config.update(fields);
  return config;
}

inline ProgramRun plan(const std::string& model, Words words, const std::string& input = "") {
  words.insert(words.begin(), {"plan", model});
  return run_program(words, input);
}
inline ProgramRun plan_of(const json& config, Words words) {
  return plan("-", words, config.dump());
}

// What is printed, without the breaks of its lines.
inline std::string unwrapped(const ProgramRun& run) {
  std::string out;
  for (const char c : run.out) {
    const bool blank = c == ' ' || c == '\n';
    if (!blank || (!out.empty() && out.back() != ' ')) out += blank ? ' ' : c;
  }
  return out;
}

inline json plan_json(const std::string& model, Words words, const std::string& input = "") {
  words.push_back("--json");
  const ProgramRun run = plan(model, std::move(words), input);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  return run.exit_code == 0 ? run.json() : json();
}
inline json json_of(const json& config, Words words) {
  return plan_json("-", std::move(words), config.dump());
}
inline json first_row(const json& config, Words words) {
  return json_of(config, std::move(words))["rows"][0];
}

inline double bytes_per_token(const json& config) {
  return first_row(config, {"--kv", "bf16", "--tokens", "64"})["bytes_per_token"];
}

}  // namespace kvant::cli
