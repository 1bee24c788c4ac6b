// The public doors of the cache: the registered formats on the process's instruction set.
#include "attention/kv_cache_impl.h"

namespace kvant {
namespace {

const FormatSource kRegistered = {.find = find_format, .bind = bind_codec};

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::create(CacheOptions options, ThreadPool& threads) {
  return create_cache(std::move(options), threads, {.formats = kRegistered});
}

Result<CachePlan> plan_cache(const CacheOptions& options, std::span<const int64_t> lengths) {
  return plan_cache_with(options, lengths, kRegistered);
}

}  // namespace kvant
