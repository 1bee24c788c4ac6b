// File layout: u64 header length (little-endian), that many bytes of JSON, then the data. The
// format's own rules are kept: the header is at most 100 MB, and the tensors cover the data without
// holes or overlaps.
#include "files/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>

#include "base/bytes.h"
#include "files/json.h"

namespace kvant {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDepth = 8;  // the header needs three levels
constexpr size_t kMaxDims = 16;

struct Dtype {
  std::string_view name;
  uint32_t bytes;
};
constexpr std::array<Dtype, 14> kDtypes = {{{"BOOL", 1},
                                            {"U8", 1},
                                            {"I8", 1},
                                            {"F8_E5M2", 1},
                                            {"F8_E4M3", 1},
                                            {"I16", 2},
                                            {"U16", 2},
                                            {"F16", 2},
                                            {"BF16", 2},
                                            {"I32", 4},
                                            {"U32", 4},
                                            {"F32", 4},
                                            {"F64", 8},
                                            {"I64", 8}}};

std::optional<uint32_t> dtype_bytes(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name == name) return dtype.bytes;
  }
  return std::nullopt;
}

// One entry of the header, checked against the data that follows it.
class EntryReader {
 public:
  EntryReader(std::string file, std::string_view name, std::span<const std::byte> data)
      : prefix_(std::move(file) + ": tensor " + in_quotes(name) + ": "), data_(data) {
    tensor_.name = name;
  }

  Result<SafetensorsTensor> read(const simdjson::dom::element& entry) {
    KVANT_TRY(read_shape(entry));
    std::string_view dtype;
    if (entry["dtype"].get(dtype) != simdjson::SUCCESS) return fail("its dtype isn't a string");
    const std::optional<uint32_t> element = dtype_bytes(dtype);
    if (!element) return fail("unknown dtype " + in_quotes(dtype));
    tensor_.dtype = dtype;
    const std::optional<uint64_t> bytes = checked_mul(num_elements_, *element);
    if (!bytes) return fail("its size passes 64 bits");
    KVANT_TRY(read_extent(entry, *bytes));
    return std::move(tensor_);
  }

 private:
  Status fail(const std::string& what) const { return corrupt(prefix_ + what); }

  Status read_shape(const simdjson::dom::element& entry) {
    simdjson::dom::array shape;
    if (entry["shape"].get(shape) != simdjson::SUCCESS) return fail("its shape isn't a list");
    if (shape.size() > kMaxDims) return fail("more than 16 dimensions");
    for (const simdjson::dom::element& dim : shape) {
      uint64_t n = 0;
      if (dim.get(n) != simdjson::SUCCESS) return fail("a dimension isn't a non-negative integer");
      const std::optional<uint64_t> product = checked_mul(num_elements_, n);
      if (!product) return fail("its size passes 64 bits");
      num_elements_ = *product;
      tensor_.shape.push_back(n);
    }
    return {};
  }

  Status read_extent(const simdjson::dom::element& entry, uint64_t bytes) {
    simdjson::dom::array offsets;
    uint64_t begin = 0;
    uint64_t end = 0;
    if (entry["data_offsets"].get(offsets) != simdjson::SUCCESS || offsets.size() != 2 ||
        offsets.at(0).get(begin) != simdjson::SUCCESS ||
        offsets.at(1).get(end) != simdjson::SUCCESS) {
      return fail("data_offsets isn't a pair of non-negative integers");
    }
    const std::string range =
        "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "] ";
    if (begin > end || end > data_.size()) {
      return fail(range + "leave the file's " + std::to_string(data_.size()) + " bytes of data");
    }
    if (end - begin != bytes) {
      return fail(range + "don't hold the " + std::to_string(bytes) +
                  " bytes of its shape and dtype");
    }
    tensor_.data = data_.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
    return {};
  }

  std::string prefix_;
  std::span<const std::byte> data_;
  uint64_t num_elements_ = 1;
  SafetensorsTensor tensor_;
};

// Sorts by place and checks that the tensors cover `data` exactly.
Status check_cover(const std::string& file, std::span<const std::byte> data,
                   std::vector<SafetensorsTensor>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.data.data() < b.data.data() ||
           (a.data.data() == b.data.data() && a.data.size() < b.data.size());
  });
  const std::byte* end = data.data();
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.data.data() != end) {
      return corrupt(file + ": tensor " + in_quotes(tensor.name) +
                     (tensor.data.data() < end ? ": overlaps the tensor before it"
                                               : ": there is a hole in the data before it"));
    }
    end += tensor.data.size();
  }
  if (end != data.data() + data.size()) {
    return corrupt(file + ": " + std::to_string(data.data() + data.size() - end) +
                   " bytes at its end belong to no tensor");
  }
  return {};
}

struct Header {
  std::vector<SafetensorsTensor> tensors;
  std::unordered_map<std::string, std::string> metadata;
};

// Texts by name; whatever else stands there is nobody's.
std::unordered_map<std::string, std::string> read_metadata(const simdjson::dom::element& value) {
  std::unordered_map<std::string, std::string> metadata;
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return metadata;
  for (const simdjson::dom::key_value_pair& field : object) {
    std::string_view text;
    if (field.value.get(text) == simdjson::SUCCESS) metadata.emplace(field.key, text);
  }
  return metadata;
}

Result<Header> read_header(const MappedFile& mapped) {
  const std::string file = mapped.path().string();
  const std::span<const std::byte> bytes = mapped.bytes();
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) return corrupt(file + ": the file ends in the header");
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const size_t room = bytes.size() - sizeof(header_bytes);
  if (header_bytes > room || header_bytes > kMaxHeaderBytes) {
    return corrupt(file + ": header length " + std::to_string(header_bytes) +
                   " is more than the file's " + std::to_string(room) +
                   " bytes or the format's 100 MB");
  }
  const auto length = static_cast<size_t>(header_bytes);
  const std::span<const std::byte> data = bytes.subspan(sizeof(header_bytes) + length);

  simdjson::dom::parser parser;
  simdjson::dom::object header;
  const simdjson::padded_string text(
      reinterpret_cast<const char*>(bytes.data()) + sizeof(header_bytes), length);
  if (parser.allocate(length, kMaxDepth) != simdjson::SUCCESS ||
      parser.parse(text).get(header) != simdjson::SUCCESS) {
    return corrupt(file + ": the header isn't a valid JSON object");
  }
  Header out;
  for (const simdjson::dom::key_value_pair& field : header) {
    if (field.key == "__metadata__") {
      out.metadata = read_metadata(field.value);
      continue;
    }
    KVANT_ASSIGN(SafetensorsTensor tensor, EntryReader(file, field.key, data).read(field.value));
    out.tensors.push_back(std::move(tensor));
  }
  KVANT_TRY(check_cover(file, data, out.tensors));
  return out;
}

}  // namespace

Status Safetensors::add_file(const std::filesystem::path& path) {
  KVANT_ASSIGN(MappedFile mapped, MappedFile::open(path));
  KVANT_ASSIGN(Header header, read_header(mapped));
  metadata_.merge(header.metadata);
  for (SafetensorsTensor& tensor : header.tensors) {
    tensor.file = files_.size();
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(mapped));
  return {};
}

Status Safetensors::build_index() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [it, is_new] = by_name_.emplace(tensors_[i].name, i);
    if (!is_new) {
      return corrupt(path_of(tensors_[i]).string() + ": tensor " + in_quotes(tensors_[i].name) +
                     " is already in " + path_of(tensors_[it->second]).string());
    }
  }
  return {};
}

Status Safetensors::add_shards(const std::filesystem::path& index) {
  KVANT_ASSIGN(const JsonDocument document, JsonDocument::open(index));
  KVANT_ASSIGN(const std::optional<JsonObject> map, document.root().object("weight_map"));
  if (!map) return corrupt(index.string() + ": weight_map is missing");
  std::map<std::string, std::vector<std::string>> names_by_shard;
  for (const std::string& name : map->keys()) {
    KVANT_ASSIGN(const std::optional<std::string> shard, map->string(name));
    // A name with a folder in it could point anywhere.
    if (!shard || shard->empty() || shard->find('/') != std::string::npos) {
      return corrupt(map->where(name) + ": " + in_quotes(shard.value_or("")) +
                     ", wanted a plain file name");
    }
    names_by_shard[*shard].push_back(name);
  }
  for (const auto& [shard, names] : names_by_shard) {
    KVANT_TRY(add_file(index.parent_path() / shard).with_context(index.string()));
  }
  KVANT_TRY(build_index());
  for (const auto& [shard, names] : names_by_shard) {
    for (const std::string& name : names) {
      const SafetensorsTensor* found = tensor(name);
      if (found == nullptr || path_of(*found).filename() != shard) {
        return corrupt(index.string() + ": tensor " + in_quotes(name) + " isn't in " + shard);
      }
    }
  }
  return {};
}

const SafetensorsTensor* Safetensors::tensor(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

const std::string* Safetensors::metadata(const std::string& key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

Result<std::unique_ptr<Safetensors>> Safetensors::open_file(const std::filesystem::path& path) {
  auto out = std::make_unique<Safetensors>();
  KVANT_TRY(out->add_file(path));
  KVANT_TRY(out->build_index());
  return out;
}

Result<std::unique_ptr<Safetensors>> Safetensors::open_directory(
    const std::filesystem::path& directory) {
  const std::filesystem::path index = directory / "model.safetensors.index.json";
  std::error_code ignored;
  if (!std::filesystem::exists(index, ignored)) return open_file(directory / "model.safetensors");
  auto out = std::make_unique<Safetensors>();
  KVANT_TRY(out->add_shards(index));
  return out;
}

}  // namespace kvant
