// A tiny model with a tokenizer of bytes and a chat template, made in the scratch folder: what the
// commands that read and write text need, where no real model is installed.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "run_program.h"

namespace kvant::cli {

// The byte-level alphabet: printable bytes stand for themselves, the others for U+0100 and on.
inline std::string spelled_byte(int byte) {
  const auto prints = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  int code = byte;
  if (!prints(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += prints(b) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
}

// Contexts of 256 tokens; ids 0 to 255 are bytes, a text begins with <s> (256). `family`: of
// tests/data/models.
inline std::string tiny_chat_model(const std::string& family = "llama") {
  const std::filesystem::path folder = scratch() / ("chat-model-" + family);
  if (std::filesystem::exists(folder)) return folder.string();
  std::filesystem::create_directories(folder);
  for (const auto& file : std::filesystem::directory_iterator(tiny_model(family)))
    std::filesystem::copy(file.path(), folder / file.path().filename());
  nlohmann::json vocab;
  for (int b = 0; b < 256; ++b) vocab[spelled_byte(b)] = b;
  const auto special = [&](const char* content, int id) {
    vocab[content] = id;
    return nlohmann::json{{"id", id},        {"content", content}, {"single_word", false},
                          {"lstrip", false}, {"rstrip", false},    {"normalized", false},
                          {"special", true}};
  };
  const nlohmann::json added = {special("<s>", 256), special("</s>", 257)};
  const nlohmann::json bos = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                       text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {bos, text}},
        {"pair", {bos, text}},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  std::ofstream(folder / "tokenizer.json") << tokenizer;
  std::ofstream(folder / "tokenizer_config.json") << nlohmann::json{
      {"bos_token", "<s>"},
      {"eos_token", "</s>"},
      {"chat_template",
       "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"}};
  return folder.string();
}

}  // namespace kvant::cli
