// The parser runs once over the header with a cursor that cannot leave the mapping; it keeps, per
// key, where the value lies. Values are decoded when asked for, from bytes that the first pass has
// already checked.
#include "files/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "files/gguf_types.h"
#include "files/mapped_file.h"

namespace kvant {
namespace {

constexpr uint64_t kMaxAlignment =
    1 << 16;  // larger ones exist in no file, and could only hide a corrupt header
constexpr uint32_t kMaxDims = 4;  // ggml's own limit

// Value types of the specification, in its numbering.
enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kNumValueTypes
};
constexpr size_t kFixedBytes[kNumValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct Value {
  uint32_t type = 0;
  uint32_t element = 0;  // of an array; else the same as type
  uint64_t count = 1;    // elements of an array
  size_t offset = 0;     // of the first element
};

// A position in the mapping. take() gives nothing once the bytes run out.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes, size_t position = 0)
      : bytes_(bytes), position_(position) {}

  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

  template <typename T>
  std::optional<T> take() {
    if (left() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  bool skip(uint64_t n) {
    if (n > left()) return false;
    position_ += static_cast<size_t>(n);
    return true;
  }
  std::optional<std::string_view> take_string() {
    const auto length = take<uint64_t>();
    if (!length || *length > left()) return std::nullopt;
    std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + position_,
                          static_cast<size_t>(*length));
    position_ += text.size();
    return text;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_;
};

// Calls fn with the number at the cursor, which is of the scalar type `type`; false for strings and
// arrays.
template <typename Fn>
bool visit_number(uint32_t type, Cursor& cursor, Fn&& fn) {
  switch (type) {
    case kU8:
      fn(cursor.take<uint8_t>().value_or(0));
      return true;
    case kI8:
      fn(cursor.take<int8_t>().value_or(0));
      return true;
    case kU16:
      fn(cursor.take<uint16_t>().value_or(0));
      return true;
    case kI16:
      fn(cursor.take<int16_t>().value_or(0));
      return true;
    case kU32:
      fn(cursor.take<uint32_t>().value_or(0));
      return true;
    case kI32:
      fn(cursor.take<int32_t>().value_or(0));
      return true;
    case kU64:
      fn(cursor.take<uint64_t>().value_or(0));
      return true;
    case kI64:
      fn(cursor.take<int64_t>().value_or(0));
      return true;
    case kF32:
      fn(cursor.take<float>().value_or(0));
      return true;
    case kF64:
      fn(cursor.take<double>().value_or(0));
      return true;
    case kBool:
      fn(cursor.take<uint8_t>().value_or(0) != 0);
      return true;
    default:
      return false;
  }
}

std::optional<int64_t> take_integer(uint32_t type, Cursor& cursor) {
  std::optional<int64_t> out;
  visit_number(type, cursor, [&out](auto value) {
    using T = decltype(value);
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      if (std::in_range<int64_t>(value)) out = static_cast<int64_t>(value);
    }
  });
  return out;
}

std::optional<double> take_number(uint32_t type, Cursor& cursor) {
  std::optional<double> out;
  visit_number(type, cursor, [&out](auto value) {
    if constexpr (!std::is_same_v<decltype(value), bool>) out = static_cast<double>(value);
  });
  return out;
}

class MappedGguf final : public GgufFile {
 public:
  explicit MappedGguf(MappedFile file) : file_(std::move(file)) {}

  Status parse();

  const std::filesystem::path& path() const override { return file_.path(); }
  void forget() const override { file_.forget(); }
  uint32_t version() const override { return version_; }
  std::vector<std::string_view> keys() const override { return keys_; }
  std::span<const GgufTensor> tensors() const override { return tensors_; }

  const GgufTensor* tensor(std::string_view name) const override {
    const auto it = tensor_index_.find(name);
    return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
  }

  std::optional<std::string_view> string(std::string_view key) const override {
    const Value* value = find(key);
    if (value == nullptr || value->type != kString) return std::nullopt;
    return at(*value).take_string();
  }
  std::optional<int64_t> integer(std::string_view key) const override {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    Cursor cursor = at(*value);
    return take_integer(value->type, cursor);
  }
  std::optional<double> number(std::string_view key) const override {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    Cursor cursor = at(*value);
    return take_number(value->type, cursor);
  }
  std::optional<bool> boolean(std::string_view key) const override {
    const Value* value = find(key);
    if (value == nullptr || value->type != kBool) return std::nullopt;
    return at(*value).take<uint8_t>() != uint8_t{0};
  }
  std::optional<std::vector<std::string_view>> strings(std::string_view key) const override {
    return elements<std::string_view>(
        key, [](uint32_t type, Cursor& cursor) -> std::optional<std::string_view> {
          if (type != kString) return std::nullopt;
          return cursor.take_string();
        });
  }
  std::optional<std::vector<int64_t>> integers(std::string_view key) const override {
    return elements<int64_t>(key, take_integer);
  }
  std::optional<std::vector<double>> numbers(std::string_view key) const override {
    return elements<double>(key, take_number);
  }

 private:
  Status fail(const std::string& what) const { return corrupt(path().string() + ": " + what); }
  const Value* find(std::string_view key) const {
    const auto it = values_.find(key);
    return it == values_.end() ? nullptr : &it->second;
  }
  Cursor at(const Value& value) const { return Cursor(file_.bytes(), value.offset); }

  template <typename T, typename Take>
  std::optional<std::vector<T>> elements(std::string_view key, Take take) const {
    const Value* value = find(key);
    if (value == nullptr || value->type != kArray) return std::nullopt;
    Cursor cursor = at(*value);
    std::vector<T> out;
    out.reserve(static_cast<size_t>(value->count));  // parse() has seen that many elements
    for (uint64_t i = 0; i < value->count; ++i) {
      std::optional<T> element = take(value->element, cursor);
      if (!element) return std::nullopt;
      out.push_back(*element);
    }
    return out;
  }

  Status parse_header(Cursor& cursor, uint64_t& num_tensors, uint64_t& num_keys);
  Status parse_key(Cursor& cursor);
  Status parse_array(Cursor& cursor, std::string_view key, Value& value);
  Status parse_tensor(Cursor& cursor, uint64_t& offset);
  Status place_tensors(size_t header_end, std::span<const uint64_t> offsets);
  Status check_overlap() const;
  Result<uint64_t> tensor_bytes(const GgufTensor& tensor) const;

  MappedFile file_;
  uint32_t version_ = 0;
  std::vector<std::string_view> keys_;
  std::unordered_map<std::string_view, Value> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

Status MappedGguf::parse() {
  Cursor cursor(file_.bytes());
  uint64_t num_tensors = 0;
  uint64_t num_keys = 0;
  KVANT_TRY(parse_header(cursor, num_tensors, num_keys));
  for (uint64_t i = 0; i < num_keys; ++i) KVANT_TRY(parse_key(cursor));
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    uint64_t offset = 0;
    KVANT_TRY(parse_tensor(cursor, offset));
    offsets.push_back(offset);
  }
  KVANT_TRY(place_tensors(cursor.position(), offsets));
  return check_overlap();
}

Status MappedGguf::parse_header(Cursor& cursor, uint64_t& num_tensors, uint64_t& num_keys) {
  const auto magic = cursor.take<uint32_t>();
  if (magic != 0x46554747u) return fail("not a GGUF file: it doesn't start with 'GGUF'");
  const auto version = cursor.take<uint32_t>();
  if (!version) return fail("the file ends in the header");
  if ((*version & 0xffffu) == 0 && *version != 0) return fail("big-endian GGUF isn't supported");
  if (*version != 2 && *version != 3) {
    return fail("GGUF version " + std::to_string(*version) + ", wanted 2 or 3");
  }
  version_ = *version;
  const auto tensors = cursor.take<uint64_t>();
  const auto keys = cursor.take<uint64_t>();
  if (!tensors || !keys) return fail("the file ends in the header");
  // A key takes at least 8 + 4 + 1 bytes, a tensor 8 + 4 + 8 + 4 + 8.
  if (*keys > cursor.left() / 13) {
    return fail("metadata count " + std::to_string(*keys) + " is more than the file can hold");
  }
  if (*tensors > cursor.left() / 32) {
    return fail("tensor count " + std::to_string(*tensors) + " is more than the file can hold");
  }
  num_tensors = *tensors;
  num_keys = *keys;
  return {};
}

Status MappedGguf::parse_key(Cursor& cursor) {
  const auto key = cursor.take_string();
  if (!key) return fail("key " + std::to_string(keys_.size()) + " passes the end of the file");
  const auto type = cursor.take<uint32_t>();
  if (!type) return fail("key " + in_quotes(*key) + ": the file ends before its value");
  if (*type >= kNumValueTypes) {
    return fail("key " + in_quotes(*key) + ": unknown value type " + std::to_string(*type));
  }
  Value value{*type, *type, 1, cursor.position()};
  if (*type == kArray) {
    KVANT_TRY(parse_array(cursor, *key, value));
  } else if (*type == kString ? !cursor.take_string() : !cursor.skip(kFixedBytes[*type])) {
    return fail("key " + in_quotes(*key) + ": its value passes the end of the file");
  }
  if (!values_.emplace(*key, value).second)
    return fail("key " + in_quotes(*key) + " is there twice");
  keys_.push_back(*key);
  return {};
}

Status MappedGguf::parse_array(Cursor& cursor, std::string_view key, Value& value) {
  const auto element = cursor.take<uint32_t>();
  const auto count = cursor.take<uint64_t>();
  if (!element || !count) return fail("key " + in_quotes(key) + ": the file ends in its array");
  if (*element >= kNumValueTypes || *element == kArray) {
    return fail("key " + in_quotes(key) + ": unsupported array of type " +
                std::to_string(*element));
  }
  const std::string too_long = "key " + in_quotes(key) + ": an array of " + std::to_string(*count) +
                               " elements passes the end of the file";
  value = {kArray, *element, *count, cursor.position()};
  if (*element == kString) {
    for (uint64_t i = 0; i < *count; ++i) {
      if (!cursor.take_string()) return fail(too_long);
    }
    return {};
  }
  const auto bytes = checked_mul(*count, kFixedBytes[*element]);
  if (!bytes || !cursor.skip(*bytes)) return fail(too_long);
  return {};
}

Status MappedGguf::parse_tensor(Cursor& cursor, uint64_t& offset) {
  GgufTensor tensor;
  const auto name = cursor.take_string();
  const auto num_dims = cursor.take<uint32_t>();
  if (!name || !num_dims) {
    return fail("tensor " + std::to_string(tensors_.size()) + " passes the end of the file");
  }
  tensor.name = *name;
  if (*num_dims == 0 || *num_dims > kMaxDims) {
    return fail("tensor " + in_quotes(*name) + ": " + std::to_string(*num_dims) +
                " dimensions, wanted 1 to 4");
  }
  for (uint32_t i = 0; i < *num_dims; ++i) {
    tensor.dims.push_back(cursor.take<uint64_t>().value_or(0));
    if (tensor.dims.back() == 0) {
      return fail("tensor " + in_quotes(*name) + ": dimension " + std::to_string(i) +
                  " is 0 or missing");
    }
  }
  const auto type = cursor.take<uint32_t>();
  const auto start = cursor.take<uint64_t>();
  if (!type || !start) return fail("tensor " + in_quotes(*name) + ": the file ends in its entry");
  tensor.type = *type;
  offset = *start;
  if (!tensor_index_.emplace(*name, tensors_.size()).second) {
    return fail("tensor " + in_quotes(*name) + " is there twice");
  }
  tensors_.push_back(std::move(tensor));
  return {};
}

Result<uint64_t> MappedGguf::tensor_bytes(const GgufTensor& tensor) const {
  const GgufType* type = find_gguf_type(tensor.type);
  if (type == nullptr) {
    return fail("tensor " + in_quotes(tensor.name) + ": unknown type " +
                std::to_string(tensor.type));
  }
  if (tensor.dims[0] % type->block != 0) {
    return fail("tensor " + in_quotes(tensor.name) + ": row of " + std::to_string(tensor.dims[0]) +
                " elements isn't a multiple of " + std::string(type->name) + "'s block of " +
                std::to_string(type->block));
  }
  std::optional<uint64_t> bytes = checked_mul(tensor.dims[0] / type->block, type->block_bytes);
  for (size_t i = 1; i < tensor.dims.size() && bytes; ++i)
    bytes = checked_mul(*bytes, tensor.dims[i]);
  if (!bytes) return fail("tensor " + in_quotes(tensor.name) + ": its size passes 64 bits");
  return *bytes;
}

Status MappedGguf::place_tensors(size_t header_end, std::span<const uint64_t> offsets) {
  int64_t alignment = 32;
  if (find("general.alignment") != nullptr) {
    alignment = integer("general.alignment").value_or(0);
    const bool power_of_two = alignment > 0 && (alignment & (alignment - 1)) == 0;
    if (!power_of_two || static_cast<uint64_t>(alignment) > kMaxAlignment) {
      return fail("general.alignment: " + std::to_string(alignment) + ", wanted a power of two");
    }
  }
  const auto align = static_cast<size_t>(alignment);
  const size_t size = file_.bytes().size();
  const size_t data_start = round_up(header_end, align);
  if (!tensors_.empty() && data_start > size) return fail("the file ends before its tensor data");
  for (size_t i = 0; i < tensors_.size(); ++i) {
    GgufTensor& tensor = tensors_[i];
    KVANT_ASSIGN(const uint64_t bytes, tensor_bytes(tensor));
    if (offsets[i] % align != 0) {
      return fail("tensor " + in_quotes(tensor.name) + ": offset " + std::to_string(offsets[i]) +
                  " isn't a multiple of the alignment " + std::to_string(align));
    }
    const uint64_t room = size - data_start;
    if (offsets[i] > room || bytes > room - offsets[i]) {
      return fail("tensor " + in_quotes(tensor.name) + ": " + std::to_string(bytes) +
                  " bytes at offset " + std::to_string(offsets[i]) +
                  " pass the end of the file's " + std::to_string(room) + " bytes of data");
    }
    tensor.data = file_.bytes().subspan(data_start + static_cast<size_t>(offsets[i]),
                                        static_cast<size_t>(bytes));
  }
  return {};
}

Status MappedGguf::check_overlap() const {
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& tensor : tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return a->data.data() < b->data.data();
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->data.data() + order[i - 1]->data.size() > order[i]->data.data()) {
      return fail("tensors " + in_quotes(order[i - 1]->name) + " and " + in_quotes(order[i]->name) +
                  " overlap");
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::filesystem::path& path) {
  KVANT_ASSIGN(MappedFile file, MappedFile::open(path));
  auto gguf = std::make_unique<MappedGguf>(std::move(file));
  KVANT_TRY(gguf->parse());
  return std::unique_ptr<GgufFile>(std::move(gguf));
}

}  // namespace kvant
