#include "evaluate/read_share.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

CacheOptions one_layer(const FormatPair& formats, int window = 0) {
  CacheOptions options;
  CacheLayer layer;
  layer.num_kv_heads = 1;
  layer.key_dim = layer.value_dim = 64;
  layer.window = window;
  layer.formats = formats;
  options.layers = {layer};
  return options;
}

TEST(ReadShare, ExactFormatsReadNothingSealed) {
  EXPECT_EQ(count_reads(one_layer({"bf16", "bf16"}), 0, 1000)->sealed, 0);
}

TEST(ReadShare, CountsByTheReadRule) {
  // The query at 200 sees 201 tokens; pages 0 to 2 lie before its open page, page 0 is the sink.
  CacheOptions options = one_layer({"int8_token", "int8_token"});
  ReadShare share = *count_reads(options, 200, 1);
  EXPECT_EQ(share.reads, 2 * 201);
  EXPECT_EQ(share.sealed, 2 * 128);
  options.exact_window = 64;
  EXPECT_EQ(count_reads(options, 200, 1)->sealed, 2 * 64);
  options.exact_window = 0;
  options.sinks = 0;
  EXPECT_EQ(count_reads(options, 200, 1)->sealed, 2 * 192);
  options = one_layer({"int8_token", "bf16"});
  EXPECT_EQ(count_reads(options, 200, 1)->sealed, 128);
}

TEST(ReadShare, ASlidingLayerReadsItsWindowOnly) {
  // The query at 200 sees tokens 101 to 200, of which 101 to 191 lie before its open page.
  const ReadShare share = *count_reads(one_layer({"int8_token", "int8_token"}, 100), 200, 1);
  EXPECT_EQ(share.reads, 2 * 100);
  EXPECT_EQ(share.sealed, 2 * 91);
}

TEST(ReadShare, AShortTextReadsNothingSealed) {
  EXPECT_EQ(count_reads(one_layer({"int2_channel_z", "int2_token_z"}), 0, 128)->sealed, 0)
      << "sink and open page";
  EXPECT_GT(count_reads(one_layer({"int2_channel_z", "int2_token_z"}), 0, 129)->sealed, 0);
}

}  // namespace
}  // namespace kvant
