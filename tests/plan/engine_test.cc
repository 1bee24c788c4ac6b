#include "../model/tiny_models.h"
#include "engine_shapes.h"

namespace kvant {
namespace {

class TinyModelShape : public ::testing::TestWithParam<TinyModel> {};

TEST_P(TinyModelShape, IsTheEngines) { expect_the_engines_shape(GetParam().path); }

INSTANTIATE_TEST_SUITE_P(Models, TinyModelShape, ::testing::ValuesIn(tiny_models()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvant
