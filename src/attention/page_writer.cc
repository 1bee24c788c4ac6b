#include "attention/page_writer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

namespace kvant {
namespace {

// Below this many floats a loop is cheaper on the calling thread than waking others.
constexpr size_t kSerialFloats = 16 << 10;

void run_tasks(ThreadPool& threads, size_t num_tasks, size_t num_floats,
               const std::function<void(size_t, int)>& task) {
  if (num_floats >= kSerialFloats) {
    threads.run(num_tasks, task);
  } else {
    for (size_t i = 0; i < num_tasks; ++i) task(i, 0);
  }
}

constexpr size_t page_floats(int dim) {
  return static_cast<size_t>(kPageTokens) * static_cast<size_t>(dim);
}

}  // namespace

PageWriter::PageWriter(const BoundLayers& bound, LayerPages& pages, ThreadPool& threads)
    : bound_(bound),
      pages_(pages),
      threads_(threads),
      scratch_(static_cast<size_t>(threads.num_threads())) {
  size_t key = 0, value = 0, pre_rope = 0, previous = 0;
  for (const BoundLayer& layer : bound.layers) {
    if (layer.group < 0 || layer.format.sealed.total() == 0) continue;
    key = std::max(key, page_floats(layer.format.key_dim));
    value = std::max(value, page_floats(layer.format.value_dim));
    if (layer.key_needs.pre_rope_rows)
      pre_rope = std::max(pre_rope, page_floats(layer.format.key_dim));
    if (layer.key_needs.previous_layer || layer.value_needs.previous_layer) {
      previous = std::max(
          {previous, page_floats(layer.format.key_dim), page_floats(layer.format.value_dim)});
    }
  }
  for (Scratch& scratch : scratch_) {
    scratch.key.reserve_discarding(key);
    scratch.value.reserve_discarding(value);
    scratch.pre_rope.reserve_discarding(pre_rope);
    scratch.previous.reserve_discarding(previous);
  }
}

bool PageWriter::store_page(int layer, const Task& task, int head, const NewRows& rows) {
  const BoundLayer& bound = bound_.layers[static_cast<size_t>(layer)];
  const LayerFormat& format = bound.format;
  const StepSequence& item = *task.item;
  const int64_t page_start = task.page * kPageTokens;
  const int64_t begin = std::max(item.begin, page_start);
  const int64_t end = std::min(item.end, page_start + kPageTokens);
  const auto row = static_cast<size_t>(item.first_row + (begin - item.begin));
  const int slot = static_cast<int>(begin - page_start);
  const auto view = [&](const float* data, int dim) {
    const size_t stride = static_cast<size_t>(format.num_kv_heads) * static_cast<size_t>(dim);
    return RowsView{
        .data = data + row * stride + static_cast<size_t>(head) * static_cast<size_t>(dim),
        .stride = stride,
        .num_rows = static_cast<int>(end - begin),
        .dim = dim};
  };
  std::byte* record = pages_.record(
      layer, task.item->groups[static_cast<size_t>(bound.group)].written(task.page).exact, false);
  bool ok = store_key_rows(format.key.exact_type, view(rows.key, format.key_dim), slot,
                           record + key_offset(format.exact, head));
  if (!format.value_from_key) {
    ok &= store_value_rows(format.value.exact_type, view(rows.value, format.value_dim), slot,
                           record + value_offset(format.exact, head));
  }
  if (bound.key_needs.pre_rope_rows) {
    ok &= store_key_rows(format.key.exact_type, view(rows.pre_rope, format.key_dim), slot,
                         record + pre_rope_offset(format.exact, head));
  }
  return ok;
}

Status PageWriter::describe_bad_row(const Step& step, int layer, const NewRows& rows) const {
  const BoundLayer& bound = bound_.layers[static_cast<size_t>(layer)];
  const LayerFormat& format = bound.format;
  for (const StepSequence& item : step.sequences()) {
    for (int64_t t = item.begin; t < item.end; ++t) {
      const auto row = static_cast<size_t>(item.first_row + (t - item.begin));
      const auto find = [&](const char* name, const float* data, int dim) -> Status {
        const size_t width = static_cast<size_t>(format.num_kv_heads) * static_cast<size_t>(dim);
        for (size_t i = 0; i < width; ++i) {
          const float x = data[row * width + i];
          if (std::isfinite(x)) continue;
          return invalid_argument("layer " + std::to_string(layer) + ": " + name + " of sequence " +
                                  std::to_string(item.id) + " at position " + std::to_string(t) +
                                  ", head " + std::to_string(i / static_cast<size_t>(dim)) +
                                  ", channel " + std::to_string(i % static_cast<size_t>(dim)) +
                                  " is " + std::to_string(x) + "; wanted a finite number");
        }
        return Status();
      };
      KVANT_TRY(find("K", rows.key, format.key_dim));
      if (!format.value_from_key) KVANT_TRY(find("V", rows.value, format.value_dim));
      if (bound.key_needs.pre_rope_rows)
        KVANT_TRY(find("K before RoPE", rows.pre_rope, format.key_dim));
    }
  }
  return internal_error("layer " + std::to_string(layer) +
                        ": a row isn't finite, but none was found");
}

Status PageWriter::store(const Step& step, int layer, const NewRows& rows) {
  const BoundLayer& bound = bound_.layers[static_cast<size_t>(layer)];
  const auto heads = static_cast<size_t>(bound.format.num_kv_heads);
  tasks_.clear();
  for (const StepSequence& item : step.sequences()) {
    for (int64_t j = page_of(item.begin); j < num_pages(item.end); ++j)
      tasks_.push_back({&item, j});
  }
  const size_t floats = static_cast<size_t>(step.num_rows()) * heads *
                        static_cast<size_t>(bound.format.key_dim + bound.format.value_dim);
  std::atomic<bool> ok{true};
  run_tasks(threads_, tasks_.size() * heads, floats, [&](size_t i, int) {
    if (!store_page(layer, tasks_[i / heads], static_cast<int>(i % heads), rows)) ok = false;
  });
  return ok ? Status() : describe_bad_row(step, layer, rows);
}

void PageWriter::encode_side(const Step& step, int layer, const Task& task, int head, Side side,
                             const float* rows, Scratch& scratch, std::byte* to) {
  const BoundLayer& bound = bound_.layers[static_cast<size_t>(layer)];
  const bool is_key = side == Side::kKey;
  const FormatNeeds& needs = is_key ? bound.key_needs : bound.value_needs;
  PageInput input{.rows = rows, .first_position = task.page * kPageTokens};
  if (needs.pre_rope_rows && is_key) input.pre_rope_rows = scratch.pre_rope.data();
  if (needs.key_rows && !is_key) input.key_rows = scratch.key.data();
  if (needs.previous_layer) {
    read_page(step, layer - 1, task, head, side, scratch.previous.data());
    input.previous_layer = scratch.previous.data();
  }
  const SideFormat& format = is_key ? bound.format.key : bound.format.value;
  format.codecs[static_cast<size_t>(head)]->encode(input, to);
}

// A page of a layer as later queries read it, decoded.
void PageWriter::read_page(const Step& step, int layer, const Task& task, int head, Side side,
                           float* rows) const {
  const BoundLayer& bound = bound_.layers[static_cast<size_t>(layer)];
  const bool sealed = bound.format.sealed.total() > 0;
  const PagePlace place =
      step.locate(*task.item, static_cast<size_t>(bound.group), task.page, sealed);
  const PageRecord page{.record = std::as_const(pages_).record(layer, place, sealed),
                        .sealed = sealed};
  const RowsOut out{.data = rows,
                    .stride = static_cast<size_t>(side == Side::kKey ? bound.format.key_dim
                                                                     : bound.format.value_dim),
                    .num_rows = kPageTokens,
                    .dim = side == Side::kKey ? bound.format.key_dim : bound.format.value_dim};
  read_rows(bound.format, page, head, side, 0, out);
}

void PageWriter::seal_page(const Step& step, int layer, const Task& task, int head,
                           Scratch& scratch) {
  const BoundLayer& bound = bound_.layers[static_cast<size_t>(layer)];
  const LayerFormat& format = bound.format;
  const StepPage& page = task.item->groups[static_cast<size_t>(bound.group)].written(task.page);
  const std::byte* exact = pages_.record(layer, page.exact, false);
  std::byte* sealed = pages_.record(layer, page.sealed, true);
  const auto out = [](float* data, int dim) {
    return RowsOut{
        .data = data, .stride = static_cast<size_t>(dim), .num_rows = kPageTokens, .dim = dim};
  };
  const std::byte* exact_key = exact + key_offset(format.exact, head);
  const std::byte* exact_value = exact + value_offset(format.exact, head);
  std::byte* sealed_key = sealed + key_offset(format.sealed, head);
  std::byte* sealed_value = sealed + value_offset(format.sealed, head);
  if (format.key.codecs.empty()) {
    std::memcpy(sealed_key, exact_key, format.exact.key);
  } else {
    load_key_rows(format.key.exact_type, exact_key, 0, out(scratch.key.data(), format.key_dim));
    if (bound.key_needs.pre_rope_rows) {
      load_key_rows(format.key.exact_type, exact + pre_rope_offset(format.exact, head), 0,
                    out(scratch.pre_rope.data(), format.key_dim));
    }
    encode_side(step, layer, task, head, Side::kKey, scratch.key.data(), scratch, sealed_key);
  }
  if (format.value.codecs.empty()) {
    std::memcpy(sealed_value, exact_value, format.exact.value);
  } else {
    if (bound.value_needs.key_rows) {
      read_rows(format, {.record = sealed, .sealed = true}, head, Side::kKey, 0,
                out(scratch.key.data(), format.key_dim));
    }
    load_value_rows(format.value.exact_type, exact_value, 0,
                    out(scratch.value.data(), format.value_dim));
    encode_side(step, layer, task, head, Side::kValue, scratch.value.data(), scratch, sealed_value);
  }
}

void PageWriter::seal(const Step& step, int layer) {
  const BoundLayer& bound = bound_.layers[static_cast<size_t>(layer)];
  if (bound.format.sealed.total() == 0) return;
  const auto heads = static_cast<size_t>(bound.format.num_kv_heads);
  tasks_.clear();
  for (const StepSequence& item : step.sequences()) {
    const StepGroup& group = item.groups[static_cast<size_t>(bound.group)];
    for (size_t i = 0; i < group.pages.size(); ++i) {
      if (group.pages[i].sealed.exists())
        tasks_.push_back({&item, group.first_page + static_cast<int64_t>(i)});
    }
  }
  threads_.run(tasks_.size() * heads, [&](size_t i, int worker) {
    seal_page(step, layer, tasks_[i / heads], static_cast<int>(i % heads),
              scratch_[static_cast<size_t>(worker)]);
  });
}

uint64_t PageWriter::workspace_bytes() const {
  uint64_t floats = 0;
  for (const Scratch& s : scratch_)
    floats += s.key.size() + s.value.size() + s.pre_rope.size() + s.previous.size();
  return floats * sizeof(float) + tasks_.capacity() * sizeof(Task);
}

}  // namespace kvant
