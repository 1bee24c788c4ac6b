#include "engine/stop_strings.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

// Pushes the pieces; what was shown, with '|' between pushes.
std::string shown(StopStrings& stops, const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) out += stops.push(piece) + "|";
  return out;
}

TEST(StopStrings, AMatchInsideOnePieceEndsBeforeIt) {
  StopStrings stops({"END"});
  EXPECT_EQ(shown(stops, {"fooENDbar", "more"}), "foo||");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopStrings, ASplitStopIsNeverShownInPart) {
  StopStrings stops({"\nUser:"});
  EXPECT_EQ(shown(stops, {"Hello", "\n", "Us", "er", ": x"}), "Hello|||||");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopStrings, AFalseStartIsShownWhenItFails) {
  StopStrings stops({"abcd"});
  EXPECT_EQ(shown(stops, {"xab", "c", "e"}), "x||abce|");
  EXPECT_FALSE(stops.stopped());
}

TEST(StopStrings, AFalseStartMayHoldATrueOne) {
  StopStrings stops({"aab"});
  EXPECT_EQ(shown(stops, {"a", "a", "a", "b"}), "||a||");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopStrings, TheEarliestOfSeveralWins) {
  StopStrings stops({"late", "ear"});
  EXPECT_EQ(stops.push("an ear, late"), "an ");
}

TEST(StopStrings, WhatWasHeldBackComesWithFlush) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.push("the EN"), "the ");
  EXPECT_EQ(stops.flush(), "EN");
  EXPECT_EQ(stops.flush(), "");
}

TEST(StopStrings, EmptyStopsAreIgnored) {
  StopStrings stops({""});
  EXPECT_EQ(stops.push("text"), "text");
  EXPECT_FALSE(stops.stopped());
}

}  // namespace
}  // namespace kvant
