#include "cache_world.h"

namespace kvant::test {
FormatSource world_formats() { return test_formats(); }
}  // namespace kvant::test
