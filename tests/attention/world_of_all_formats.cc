#include "cache_world.h"

namespace kvant::test {
FormatSource world_formats() {
  static const FormatSource registered = {.find = find_format, .bind = bind_codec};
  return test_formats(&registered);
}
}  // namespace kvant::test
