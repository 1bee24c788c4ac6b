// The tiny models of tests/data/models and what Transformers computed from them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace kvant {

struct Golden {
  std::string name;
  std::vector<int32_t> ids;
  std::vector<size_t> rows;   // positions whose logits are kept
  std::vector<float> logits;  // [rows][vocabulary]
  std::vector<int32_t> greedy;
  int64_t context = 0;  // to load the model with
};

struct TinyModel {
  std::string name;            // "mistral", "qwen2_gguf"
  std::filesystem::path path;  // of a directory or a GGUF file
  std::vector<Golden> goldens;
};
inline std::ostream& operator<<(std::ostream& out, const TinyModel& model) {
  return out << model.path;
}

inline std::filesystem::path models_dir() {
  return std::filesystem::path(KVANT_TEST_DATA) / "models";
}

struct NpyMatrix {
  size_t columns = 0;
  std::vector<float> values;
};

// A version 1 .npy file of type '<f4' with two dimensions.
inline NpyMatrix read_npy(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const size_t start = 10 + static_cast<size_t>(static_cast<unsigned char>(bytes.at(8))) +
                       256 * static_cast<size_t>(static_cast<unsigned char>(bytes.at(9)));
  const std::string header = bytes.substr(10, start - 10);
  EXPECT_NE(header.find("'<f4'"), std::string::npos) << path;
  NpyMatrix out;
  out.columns = std::stoul(header.substr(header.find(',', header.find('(')) + 1));
  out.values.resize((bytes.size() - start) / sizeof(float));
  std::memcpy(out.values.data(), bytes.data() + start, out.values.size() * sizeof(float));
  return out;
}

inline std::vector<Golden> read_goldens(const std::filesystem::path& directory) {
  const NpyMatrix logits = read_npy(directory / "goldens.npy");
  std::ifstream in(directory / "goldens.json");
  const nlohmann::json json = nlohmann::json::parse(in);
  std::vector<Golden> out;
  auto next = logits.values.begin();
  for (const auto& prompt : json.at("prompts")) {
    Golden golden{prompt.at("name"),   prompt.at("ids"),    prompt.at("rows"), {},
                  prompt.at("greedy"), prompt.at("context")};
    const auto count = static_cast<std::ptrdiff_t>(golden.rows.size() * logits.columns);
    golden.logits.assign(next, next + count);
    next += count;
    out.push_back(std::move(golden));
  }
  EXPECT_EQ(next, logits.values.end()) << directory;
  return out;
}

// Every directory with goldens, and every model.gguf in one.
inline std::vector<TinyModel> tiny_models() {
  std::vector<TinyModel> out;
  for (const auto& entry : std::filesystem::directory_iterator(models_dir())) {
    if (!std::filesystem::exists(entry.path() / "goldens.json")) continue;
    TinyModel model{entry.path().filename(), entry.path(), read_goldens(entry.path())};
    std::replace(model.name.begin(), model.name.end(), '-', '_');
    out.push_back(model);
    const std::filesystem::path gguf = entry.path() / "model.gguf";
    if (!std::filesystem::exists(gguf)) continue;
    model.name += "_gguf";
    model.path = gguf;
    out.push_back(model);
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

}  // namespace kvant
