#!/bin/sh
# shard.sh SHARD COUNT PROGRAM...: runs the share SHARD, of COUNT, of a GoogleTest program's cases.
# Where reports go to a folder (GTEST_OUTPUT=xml:FOLDER/), each shard gets a file of its own: GoogleTest names the file
# after the program when it starts and writes it when it ends, so that shards which run at once would overwrite it.
export GTEST_SHARD_INDEX="$1" GTEST_TOTAL_SHARDS="$2"
shift 2
for program; do :; done
case ${GTEST_OUTPUT:-} in
  */) export GTEST_OUTPUT="$GTEST_OUTPUT${program##*/}.$GTEST_SHARD_INDEX.xml" ;;
esac
exec "$@"
