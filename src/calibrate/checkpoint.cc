#include "calibrate/checkpoint.h"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "calibrate/sidecar.h"
#include "files/durable_file.h"
#include "files/safetensors.h"
#include "model/checkpoint_scales.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kOurs = "kvant-";
constexpr std::string_view kMethod = "compressed-tensors";

Status failed(const fs::path& path, const std::error_code& error) {
  return io_error(path.string() + " can't be written: " + error.message());
}

Result<Json> read_json(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return not_found(path.string() + " can't be read");
  Json json = Json::parse(in, nullptr, false);
  if (!json.is_object()) return corrupt(path.string() + " isn't a JSON object");
  return json;
}

Status check_config(const fs::path& path, const Json& config) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return {};
  const std::string method =
      found->is_object() ? found->value("quant_method", std::string()) : std::string();
  if (method == kMethod) return {};
  return unsupported(path.string() + ": quantization_config.quant_method is " + in_quotes(method) +
                     ", wanted none or " + std::string(kMethod) +
                     ", beside which a cache can be declared");
}

Json with_scheme(Json config, bool per_head) {
  Json& quantization = config["quantization_config"];
  if (quantization.is_null()) {
    quantization = {{"quant_method", kMethod},
                    {"format", "dense"},
                    {"config_groups", Json::object()},
                    {"ignore", Json::array()},
                    {"quantization_status", "compressed"}};
  }
  quantization["kv_cache_scheme"] = {
      {"num_bits", 8},     {"type", "float"},  {"strategy", per_head ? "attn_head" : "tensor"},
      {"symmetric", true}, {"dynamic", false}, {"group_size", nullptr}};
  return config;
}

// What stands before "layers." in the names of attention's weights: "model." mostly.
std::string name_prefix(const Safetensors& files) {
  for (const SafetensorsTensor& tensor : files.tensors()) {
    const size_t at = tensor.name.find("layers.");
    if (at != std::string::npos && tensor.name.find(".self_attn.", at) != std::string::npos)
      return tensor.name.substr(0, at);
  }
  return "model.";
}

struct ScaleShard {
  std::string bytes;
  std::vector<std::string> names;
  uint64_t data_bytes = 0;
};

ScaleShard make_shard(const CacheScales& scales, const std::string& format, bool per_head,
                      const std::string& prefix) {
  ScaleShard shard;
  SafetensorsWriter writer;
  for (size_t l = 0; l < scales.layers.size(); ++l) {
    const LayerScales& layer = scales.layers[l];
    for (const auto& [side, name] :
         {std::pair{&layer.query, "q_scale"}, {&layer.key, "k_scale"}, {&layer.value, "v_scale"}}) {
      const auto found = side->scales.find(format);
      if (found == side->scales.end()) continue;
      std::vector<uint64_t> shape = {found->second.size()};
      if (per_head) shape.insert(shape.end(), {1, 1});
      shard.names.push_back(prefix + "layers." + std::to_string(l) + ".self_attn." + name);
      shard.data_bytes += found->second.size() * sizeof(float);
      writer.add(shard.names.back(), "F32", shape, found->second);
    }
  }
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
  shard.bytes = writer.finish(metadata);
  return shard;
}

// The model's own index, or one of its single file, with the shard's tensors.
Result<Json> make_index(const fs::path& model, const Safetensors& files, const ScaleShard& shard) {
  Json index = {{"metadata", Json::object()}, {"weight_map", Json::object()}};
  std::error_code error;
  if (fs::exists(model / kIndex, error)) {
    KVANT_ASSIGN(index, read_json(model / kIndex));
  }
  Json map = Json::object();
  uint64_t bytes = shard.data_bytes;
  for (const SafetensorsTensor& tensor : files.tensors()) {
    const std::string file = files.path_of(tensor).filename().string();
    if (file.starts_with(kOurs)) continue;
    map[tensor.name] = file;
    bytes += tensor.data.size();
  }
  for (const std::string& name : shard.names) map[name] = kScalesName;
  index["weight_map"] = std::move(map);
  index["metadata"]["total_size"] = bytes;
  return index;
}

// Links a file, or copies it to another file system.
Status link_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  const fs::path file = fs::canonical(from, error);
  if (error) return io_error(from.string() + " can't be read: " + error.message());
  fs::create_hard_link(file, to, error);
  if (!error) return {};
  error.clear();
  fs::copy_file(file, to, error);
  return error ? failed(to, error) : Status();
}

// Makes every file of the new checkpoint in `folder`.
Status make_files(const CheckpointRequest& request, const CacheScales& scales,
                  const fs::path& folder) {
  const bool per_head = request.format.ends_with("_head");
  KVANT_ASSIGN(const Json config, read_json(request.model / kConfig));
  KVANT_ASSIGN(const std::unique_ptr<Safetensors> files,
               Safetensors::open_directory(request.model));
  const ScaleShard shard = make_shard(scales, request.format, per_head, name_prefix(*files));
  KVANT_ASSIGN(const Json index, make_index(request.model, *files, shard));
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(request.model, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_made = name == kConfig || name == kIndex || name.starts_with(kOurs);
    if (!is_made && fs::is_regular_file(entry.path(), error))
      KVANT_TRY(link_file(entry.path(), folder / name));
  }
  if (error) return io_error(request.model.string() + " can't be listed: " + error.message());
  KVANT_TRY(write_durably(folder / kScalesName, shard.bytes));
  KVANT_TRY(write_durably(folder / kSidecarName, request.sidecar));
  KVANT_TRY(write_durably(folder / kIndex, index.dump(2) + "\n"));
  return write_durably(folder / kConfig, with_scheme(config, per_head).dump(2) + "\n");
}

// Gives the files their place, config.json last: without it nothing is a checkpoint.
Status move_files(const fs::path& from, const fs::path& to) {
  std::vector<fs::path> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(from, error)) {
    if (entry.path().filename() != kConfig) names.push_back(entry.path().filename());
  }
  names.emplace_back(kConfig);
  for (const fs::path& name : names) {
    fs::rename(from / name, to / name, error);
    if (error) return failed(to / name, error);
  }
  return sync_folder(to);
}

}  // namespace

bool fits_checkpoint(std::string_view format) {
  return format == "fp8_e4m3_tensor" || format == "fp8_e4m3_head";
}

Status check_checkpoint(const CheckpointRequest& request) {
  std::error_code error;
  if (fs::equivalent(request.model, request.out, error)) {
    return invalid_argument("--out " + request.out.string() +
                            " is the model's own directory; wanted another for the checkpoint "
                            "with scales");
  }
  if (fs::exists(request.out / kConfig, error) && !fs::exists(request.out / kScalesName, error)) {
    return invalid_argument("--out " + request.out.string() +
                            " holds a checkpoint that calibration didn't write; wanted a new "
                            "directory, or one that it did");
  }
  KVANT_ASSIGN(const Json config, read_json(request.model / kConfig));
  KVANT_TRY(check_config(request.model / kConfig, config));
  KVANT_ASSIGN(const std::unique_ptr<Safetensors> files,
               Safetensors::open_directory(request.model));
  for (const SafetensorsTensor& tensor : files->tensors()) {
    if (!belongs_to_cache(tensor.name) ||
        files->path_of(tensor).filename().string().starts_with(kOurs))
      continue;
    return unsupported(files->path_of(tensor).string() + ": tensor " + in_quotes(tensor.name) +
                       " is a scale of the cache already; wanted a checkpoint without");
  }
  return {};
}

Status write_checkpoint(const CheckpointRequest& request, const CacheScales& scales) {
  KVANT_TRY(check_checkpoint(request));
  std::error_code error;
  fs::create_directories(request.out, error);
  if (error) return failed(request.out, error);
  const fs::path folder = request.out / (".kvant-part-" + std::to_string(getpid()));
  fs::create_directory(folder, error);
  if (error) return failed(folder, error);
  Status status = make_files(request, scales, folder);
  if (status.ok()) status = move_files(folder, request.out);
  fs::remove_all(folder, error);
  return status;
}

}  // namespace kvant
