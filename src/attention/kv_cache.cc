// The public doors of the cache: the registered formats on the process's instruction set.
#include <string>

#include "attention/kv_cache_impl.h"
#include "formats/decoded_codec.h"

namespace kvant {
namespace {

const FormatSource kDecoded = {.find = find_format, .bind = bind_decoded_codec};

const FormatSource& source_for(const CacheOptions& options) {
  return options.decode_pages ? kDecoded : registered_formats();
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::create(CacheOptions options, ThreadPool& threads) {
  const FormatSource& formats = source_for(options);
  KVANT_ASSIGN(std::unique_ptr<KvCache> cache,
               create_cache(std::move(options), threads, {.formats = formats}));
  return cache;
}

Result<std::unique_ptr<KvCache>> KvCache::create(CacheOptions options, int num_threads) {
  if (num_threads < 0) {
    return invalid_argument(std::to_string(num_threads) +
                            " threads; wanted at least 1, or 0 for all");
  }
  auto threads =
      std::make_unique<ThreadPool>(num_threads == 0 ? ThreadPool::available_cpus() : num_threads);
  const FormatSource& formats = source_for(options);
  KVANT_ASSIGN(std::unique_ptr<KvCacheImpl> cache,
               create_cache(std::move(options), *threads, {.formats = formats}));
  cache->adopt(std::move(threads));
  return std::unique_ptr<KvCache>(std::move(cache));
}

Result<CachePlan> plan_cache(const CacheOptions& options, std::span<const int64_t> lengths) {
  return plan_cache_with(options, lengths, registered_formats());
}

}  // namespace kvant
