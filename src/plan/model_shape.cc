// ModelShape from files: which object of a configuration is the decoder, which architecture reads
// it, and what all of them have in common.
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>

#include "files/gguf.h"
#include "files/json.h"
#include "files/mapped_file.h"
#include "kvant/plan.h"
#include "plan/architectures.h"
#include "plan/config_reader.h"
#include "plan/declared_kv.h"
#include "plan/declared_weights.h"
#include "plan/gguf_as_config.h"
#include "plan/parameters.h"
#include "plan/positions.h"
#include "plan/weight_files.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

// Where wrappers keep their decoder's configuration.
constexpr std::array<std::string_view, 4> kDecoders = {"text_config", "language_config",
                                                       "llm_config", "thinker_config"};

struct Decoder {
  JsonObject config;
  Place place = Place::kTop;
};

Result<Decoder> find_decoder(const JsonObject& root) {
  Decoder decoder{root};
  for (int depth = 0; depth < 3; ++depth) {
    bool found = false;
    for (const std::string_view key : kDecoders) {
      KVANT_ASSIGN(const std::optional<JsonObject> inner, decoder.config.object(key));
      if (!inner) continue;
      decoder = {*inner, Place::kWrapped};
      found = true;
      break;
    }
    if (!found) break;
  }
  return decoder;
}

// model_type, or of one that isn't given the class in architectures.
struct TypeName {
  std::string name;
  const Architecture* architecture = nullptr;
};

Result<TypeName> type_of(const JsonObject& config) {
  TypeName type;
  KVANT_ASSIGN(const std::optional<std::string> model_type, config.string("model_type"));
  if (model_type) {
    type.name = *model_type;
    type.architecture = find_architecture(type.name);
    return type;
  }
  KVANT_ASSIGN(const auto classes, config.strings("architectures"));
  if (!classes || classes->empty()) return type;
  type.name = classes->front();
  type.architecture = find_architecture_of_class(type.name);
  if (type.architecture != nullptr) type.name = type.architecture->model_type;
  return type;
}

// A name that a file may have made of anything, for messages and tables.
std::string presentable(const std::string& name) {
  const bool plain = name.size() <= 64 && std::all_of(name.begin(), name.end(),
                                                      [](char c) { return c >= ' ' && c <= '~'; });
  return plain ? name : in_quotes(name);
}

// Models that say by a field of their own whether they normalise q and k.
Result<bool> normalises_q_and_k(const ConfigReader& config) {
  bool normed = config.defaults().qk_norm;
  for (const char* name : {"use_qk_norm", "qk_norm", "qk_layernorm", "use_qk_layernorm"}) {
    KVANT_ASSIGN(const bool said, config.boolean(name, normed));
    normed = normed || said;
  }
  return normed;
}

// Fields that say something of the cache which the class doesn't use, or which isn't counted.
Status note_unused_fields(const ConfigReader& config, const ModelShape& shape) {
  KVANT_ASSIGN(const int extra, config.extra_layers());
  if (extra > 0) {
    config.note(std::to_string(extra) +
                (extra == 1 ? " layer that predicts" : " layers that predict") +
                " further tokens (MTP) " + (extra == 1 ? "isn't" : "aren't") + " counted");
  }
  KVANT_ASSIGN(const auto window, config.find("sliding_window", {-1, kWindowRange.high}));
  KVANT_ASSIGN(const bool used, config.boolean("use_sliding_window", true));
  const bool slides =
      std::any_of(shape.layers.begin(), shape.layers.end(), [](const ModelLayer& layer) {
        return std::any_of(layer.streams.begin(), layer.streams.end(),
                           [](const CacheStream& stream) { return stream.window > 0; });
      });
  if (window.value_or(0) > 0 && used && !slides) {
    config.note("sliding_window is " + std::to_string(*window) +
                ", but no layer of this architecture uses it: all see every token");
  }
  return {};
}

// A window that is no shorter than what the model is made for never hides a token.
void note_idle_windows(ModelShape& shape) {
  for (const ModelLayer& layer : shape.layers) {
    for (const CacheStream& stream : layer.streams) {
      if (stream.window == 0 || stream.window < shape.max_positions || shape.max_positions == 0)
        continue;
      shape.notes.push_back("the window of " + std::to_string(stream.window) +
                            " tokens never binds: the model is made for " +
                            std::to_string(shape.max_positions));
      return;
    }
  }
}

Result<ModelShape> shape_of_config(const JsonObject& root) {
  KVANT_ASSIGN(const Decoder decoder, find_decoder(root));
  KVANT_ASSIGN(TypeName type, type_of(decoder.config));
  if (type.name.empty()) {
    KVANT_ASSIGN(type, type_of(root));
  }
  const bool known = type.architecture != nullptr;
  ModelShape shape;
  shape.architecture = type.name.empty() ? "unknown" : presentable(type.name);
  ConfigReader reader(decoder.config, root, known ? *type.architecture : unknown_architecture(),
                      shape);
  reader.set_place(decoder.place);
  KVANT_ASSIGN(const bool normed, normalises_q_and_k(reader));
  shape.traits.qk_norm = normed;
  KVANT_TRY((known ? *type.architecture : unknown_architecture()).read(reader, shape));
  if (known) KVANT_TRY(note_unused_fields(reader, shape));
  KVANT_ASSIGN(shape.max_positions, read_max_positions(reader));
  note_idle_windows(shape);
  const ParameterCount count = count_parameters(reader, shape);
  shape.num_parameters = count.total;
  shape.parts = count.parts;
  if (count.total > 0 && (decoder.place == Place::kWrapped || decoder.config.has("vision_config")))
    reader.note("parameters are those of the language model alone");
  shape.declared_weights = read_declared_weights(root);
  if (shape.declared_weights.method.empty() && decoder.place == Place::kWrapped)
    shape.declared_weights = read_declared_weights(decoder.config);
  KVANT_ASSIGN(shape.traits.declared, read_declared_kv(root));
  if (shape.traits.declared == nullptr && decoder.place == Place::kWrapped) {
    KVANT_ASSIGN(shape.traits.declared, read_declared_kv(decoder.config));
  }
  return shape;
}

Result<bool> is_gguf(const fs::path& path) {
  KVANT_ASSIGN(const MappedFile file, MappedFile::open(path));
  constexpr std::string_view kMagic = "GGUF";
  return file.bytes().size() >= kMagic.size() &&
         std::memcmp(file.bytes().data(), kMagic.data(), kMagic.size()) == 0;
}

Result<ModelShape> shape_of_gguf(const fs::path& path) {
  KVANT_ASSIGN(const std::unique_ptr<GgufFile> file, GgufFile::open(path));
  KVANT_ASSIGN(const std::string config, gguf_as_config(*file));
  KVANT_ASSIGN(const JsonDocument document,
               JsonDocument::parse(config, path.string() + " (metadata as a config.json)"));
  KVANT_ASSIGN(ModelShape shape, shape_of_config(document.root()));
  shape.source = path.string();
  shape.architecture = presentable(std::string(*file->string("general.architecture")));
  shape.num_parameters = 0;
  shape.parts = {};
  for (const GgufTensor& tensor : file->tensors()) {
    shape.weight_bytes += tensor.data.size();
    uint64_t elements = 1;
    for (const uint64_t dim : tensor.dims) elements *= dim;
    shape.num_parameters += static_cast<int64_t>(elements);
  }
  return shape;
}

}  // namespace

Result<ModelShape> parse_model_shape(std::string_view config_json, std::string_view name) {
  KVANT_ASSIGN(const JsonDocument document, JsonDocument::parse(config_json, name));
  KVANT_ASSIGN(ModelShape shape, shape_of_config(document.root()));
  shape.source = name;
  return shape;
}

Result<ModelShape> read_model_shape(const fs::path& path) {
  std::error_code ignored;
  const bool is_directory = fs::is_directory(path, ignored);
  if (!is_directory) {
    KVANT_ASSIGN(const bool gguf, is_gguf(path));
    if (gguf) return shape_of_gguf(path);
  }
  const fs::path file = is_directory ? path / "config.json" : path;
  KVANT_ASSIGN(const JsonDocument document, JsonDocument::open(file));
  KVANT_ASSIGN(ModelShape shape, shape_of_config(document.root()));
  shape.source = path.string();
  if (shape.traits.declared == nullptr) {
    KVANT_ASSIGN(shape.traits.declared, read_declared_kv(document.root(), file.parent_path()));
  }
  // A config.json stands for its directory; a file of another name may have anything beside it.
  if (is_directory || path.filename() == "config.json") {
    KVANT_ASSIGN(shape.weight_bytes, weight_bytes_of_directory(file.parent_path(), shape.notes));
  }
  return shape;
}

}  // namespace kvant
