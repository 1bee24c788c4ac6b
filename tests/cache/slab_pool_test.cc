#include "cache/slab_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/rng.h"

namespace kvant {
namespace {

constexpr size_t kSlab = 4160;  // no power of two, no multiple of the system's page

TEST(SlabPool, HandsOutDistinctAlignedSlabs) {
  SlabPool pool({});
  const uint32_t slab_class = pool.add_class(kSlab, SlabKind::kSealed);
  std::vector<Handle> handles;
  for (int i = 0; i < 100; ++i) {
    handles.push_back(pool.allocate(slab_class).value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.data(handles.back())) % 64, 0u);
    std::memset(pool.data(handles.back()), i, kSlab);
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(pool.data(handles[static_cast<size_t>(i)])[0], static_cast<std::byte>(i));
    EXPECT_EQ(pool.data(handles[static_cast<size_t>(i)])[kSlab - 1], static_cast<std::byte>(i));
  }
  EXPECT_TRUE(pool.check_invariants().ok());
}

TEST(SlabPool, GivesMemoryBackWhenTheLastReferenceGoes) {
  SlabPool pool({});
  const uint32_t slab_class = pool.add_class(kSlab, SlabKind::kExact);
  const Handle handle = pool.allocate(slab_class).value();
  pool.retain(handle);
  pool.release(handle);
  EXPECT_TRUE(pool.is_live(handle));
  EXPECT_EQ(pool.live_bytes(SlabKind::kExact), kSlab);
  pool.release(handle);
  EXPECT_FALSE(pool.is_live(handle));
  EXPECT_EQ(pool.live_bytes(), 0u);
  EXPECT_EQ(pool.reserved_bytes(), 0u);
}

TEST(SlabPool, AHandleOfAnEarlierOwnerIsNotLive) {
  SlabPool pool({});
  const uint32_t slab_class = pool.add_class(kSlab, SlabKind::kExact);
  const Handle other = pool.allocate(slab_class).value();
  const Handle old = pool.allocate(slab_class).value();
  pool.release(old);
  const Handle fresh = pool.allocate(slab_class).value();
  EXPECT_EQ(fresh.slot(), old.slot());
  EXPECT_FALSE(pool.is_live(old));
  EXPECT_TRUE(pool.is_live(fresh));
  EXPECT_TRUE(pool.is_live(other));
  EXPECT_FALSE(pool.is_live(Handle()));
}

TEST(SlabPool, ReservesAtMostThreePercentMoreThanIsLive) {
  for (const size_t slab_bytes : {size_t{20480}, size_t{368640}, size_t{1474560}}) {
    SlabPool pool({});
    const uint32_t slab_class = pool.add_class(slab_bytes, SlabKind::kSealed);
    for (uint64_t live = 0; live < 96 << 20; live += slab_bytes) {
      ASSERT_TRUE(pool.allocate(slab_class).ok());
      if (live < 12 << 20) continue;
      ASSERT_LE(static_cast<double>(pool.reserved_bytes()),
                1.032 * static_cast<double>(pool.live_bytes()))
          << slab_bytes << " " << live;
    }
  }
}

TEST(SlabPool, RefusesMoreThanItsLimitAndSaysBothNumbers) {
  SlabPool pool({.max_live_bytes = 3 * kSlab});
  const uint32_t slab_class = pool.add_class(kSlab, SlabKind::kSealed);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pool.allocate(slab_class).ok());
  EXPECT_EQ(pool.allocate(slab_class).status().code(), Code::kExhausted);
  const size_t counts[] = {2};
  const Status status = pool.check_room(counts);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.message().find("8320 bytes are needed and 0 of 12480"), std::string::npos)
      << status.message();
}

TEST(SlabPool, AFixedPoolNeverGrowsOrShrinks) {
  SlabPool pool({.fixed = true});
  const uint32_t slab_class = pool.add_class(kSlab, SlabKind::kSealed);
  ASSERT_TRUE(pool.preallocate(slab_class, 2).ok());
  const uint64_t reserved = pool.reserved_bytes();
  const Handle a = pool.allocate(slab_class).value();
  const Handle b = pool.allocate(slab_class).value();
  EXPECT_EQ(pool.allocate(slab_class).status().code(), Code::kExhausted);
  pool.release(a);
  pool.release(b);
  EXPECT_EQ(pool.reserved_bytes(), reserved);
  EXPECT_TRUE(pool.check_invariants().ok());
}

// Against a naive model: what every live slab should hold.
TEST(SlabPool, RandomUseNeverMixesSlabs) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    SlabPool pool({});
    const uint32_t classes[] = {pool.add_class(64, SlabKind::kExact),
                                pool.add_class(kSlab, SlabKind::kSealed),
                                pool.add_class(100032, SlabKind::kSealed)};
    struct Live {
      Handle handle;
      uint64_t mark;
      int references;
    };
    std::vector<Live> live;
    for (int i = 0; i < 4000; ++i) {
      const uint64_t act = rng.below(100);
      const bool shrink = (i / 500) % 2 == 1;
      if (live.empty() || act < (shrink ? 25u : 50u)) {
        const Handle handle = pool.allocate(classes[rng.below(3)]).value();
        live.push_back({handle, rng.next(), 1});
        std::memcpy(pool.data(handle), &live.back().mark, 8);
        continue;
      }
      const size_t at = rng.below(live.size());
      if (act < 60) {
        pool.retain(live[at].handle);
        ++live[at].references;
        continue;
      }
      ASSERT_EQ(std::memcmp(pool.data(live[at].handle), &live[at].mark, 8), 0);
      pool.release(live[at].handle);
      if (--live[at].references == 0) {
        ASSERT_FALSE(pool.is_live(live[at].handle));
        live[at] = live.back();
        live.pop_back();
      }
      if (i % 50 == 0) {
        const Status status = pool.check_invariants();
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_EQ(pool.live_slabs(), live.size());
      }
    }
    for (const Live& l : live) {
      ASSERT_EQ(std::memcmp(pool.data(l.handle), &l.mark, 8), 0);
      for (int r = 0; r < l.references; ++r) pool.release(l.handle);
    }
    EXPECT_EQ(pool.reserved_bytes(), 0u);
    EXPECT_TRUE(pool.check_invariants().ok());
  }
}

}  // namespace
}  // namespace kvant
