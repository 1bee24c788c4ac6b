// kvant serve: an OpenAI-compatible server.

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "cli/memory.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "model/model_identity.h"
#include "server/http_server.h"

namespace kvant::cli {
namespace {

Result<bool> is_on(const std::string& word) {
  if (word == "on") return true;
  if (word == "off") return false;
  return invalid_argument(fmt::format("--prefix-cache is '{}', wanted on or off", word));
}

Result<std::vector<std::string>> read_keys(const std::string& path) {
  std::vector<std::string> keys;
  if (path.empty()) return keys;
  KVANT_ASSIGN(const std::string text, read_file(path));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) keys.push_back(std::move(line));
    at = end + 1;
  }
  if (keys.empty()) return invalid_argument(fmt::format("{}: there is no key in it", path));
  return keys;
}

// Bytes of pages: as asked for, or nine tenths of what there is.
Result<uint64_t> page_memory(const Settings& settings, const CacheOptions& options,
                             ThreadPool& threads) {
  if (settings.is_given("memory") && settings.is_given("pages"))
    return invalid_argument("--memory and --pages were both given; wanted one of them");
  const uint64_t available = available_memory();
  uint64_t bytes = available / 10 * 9;
  if (settings.is_given("memory")) {
    KVANT_ASSIGN(bytes, parse_size(settings.serve_memory));
  } else if (settings.is_given("pages")) {
    KVANT_ASSIGN(const std::unique_ptr<KvCache> unlimited, KvCache::create(options, threads));
    bytes = static_cast<uint64_t>(settings.pages) * unlimited->room().page_bytes;
  }
  if (bytes <= available) return bytes;
  return exhausted(fmt::format("{} of cache pages were asked for, {} of memory are available",
                               human_bytes(static_cast<double>(bytes)),
                               human_bytes(static_cast<double>(available))));
}

// Bytes of answers that are swapped out: as asked for, or half of what `pages` leave.
Result<uint64_t> swap_memory(const Settings& settings, uint64_t pages) {
  const uint64_t available = available_memory();
  const uint64_t left = available - std::min(available, pages);
  if (!settings.is_given("swap-memory")) return left / 2;
  KVANT_ASSIGN(const uint64_t bytes, parse_size(settings.swap_memory));
  if (bytes <= left) return bytes;
  return exhausted(
      fmt::format("--swap-memory is {}; beside {} of cache pages {} of memory are available",
                  human_bytes(static_cast<double>(bytes)), human_bytes(static_cast<double>(pages)),
                  human_bytes(static_cast<double>(left))));
}

// What there is room for: by the pool's own arithmetic, which is the planner's.
void announce_room(const KvCache& cache, int64_t context, int64_t chunk) {
  const CacheRoom room = cache.room();
  const auto bytes = static_cast<double>(cache.options().max_bytes);
  const uint64_t of_one = cache.bytes_at(context);
  note("pages    {} of pages, {} a page of 64 tokens at most; chunks of {} tokens\n",
       human_bytes(bytes), human_bytes(static_cast<double>(room.page_bytes)), chunk);
  note("capacity {} tokens a sequence; {} sequences of that length at once\n", context,
       of_one == 0 ? 0 : cache.options().max_bytes / of_one);
}

std::string formats_of(const CacheOptions& options, int layer) {
  const CacheLayer& own = options.layers[static_cast<size_t>(layer)];
  return (own.shares < 0 ? own : options.layers[static_cast<size_t>(own.shares)]).formats.name();
}

}  // namespace

Status run_serve(const Invocation& in) {
  std::signal(SIGPIPE, SIG_IGN);  // a log whose reader is gone ends nothing
  const Settings& settings = in.settings;
  KVANT_ASSIGN(const bool shares, is_on(settings.prefix_cache));
  KVANT_ASSIGN(std::vector<std::string> keys, read_keys(settings.api_key_file));
  KVANT_ASSIGN(const OpenModel open, open_model(in, {{settings.kv}, false, 0}));
  const CachePlanChoice& choice = open.caches.front();
  CacheOptions options = choice.options;
  options.prefix_cache = shares;
  options.paths_agree = settings.invariant;
  KVANT_ASSIGN(options.max_bytes, page_memory(settings, options, *open.threads));
  KVANT_ASSIGN(const uint64_t swap_bytes, swap_memory(settings, options.max_bytes));
  KVANT_ASSIGN(const WeightType weights, parse_weight_type(settings.weights));
  KVANT_ASSIGN(options.model_identity, model_identity(in.model, open.model->info(),
                                                      {.weights = weights,
                                                       .invariant = settings.invariant,
                                                       .context = settings.context,
                                                       .accept = {}}));
  announce(in, open);
  KVANT_ASSIGN(const std::unique_ptr<KvCache> cache,
               KvCache::create(std::move(options), *open.threads));
  const std::string name = settings.served_name.empty()
                               ? std::filesystem::path(in.model).filename().string()
                               : settings.served_name;
  const server::ServiceOptions service_options = {
      .engine = {.chunk = static_cast<int>(settings.chunk),
                 .context = settings.context,
                 .max_running = settings.max_sequences,
                 .max_swap_bytes = swap_bytes},
      .max_queue = settings.max_queue};
  server::Metrics metrics(name);
  SealingProbe probe(*cache, std::max<int64_t>(settings.error_pages, 1),
                     [&](const SealingError& error) {
                       metrics.sealing_error(formats_of(cache->options(), error.layer), error);
                     });
  KvCache& served = settings.error_pages > 0 ? static_cast<KvCache&>(probe) : *cache;
  server::Service service(*open.model, served, metrics, service_options);
  announce_room(*cache, service.context(), settings.chunk);
  note("swapping {} of memory, then pages are computed again\n",
       human_bytes(static_cast<double>(swap_bytes)));
  note("prefixes {}\n", shares ? "kept, sealed, until their pages are needed" : "off");
  const server::ApiModel model = {
      .name = name, .tokenizer = open.model->tokenizer(), .context = service.context()};
  server::HttpServer http(model, service, metrics,
                          {.host = settings.host,
                           .port = static_cast<uint16_t>(settings.port),
                           .api_keys = std::move(keys),
                           .cors_origin = settings.cors});
  KVANT_TRY(http.listen());
  note("serving  {} at http://{}:{}\n", name, settings.host, http.port());
  http.run([](const std::string& line) { note("{}\n", line); });
  return {};
}

}  // namespace kvant::cli
