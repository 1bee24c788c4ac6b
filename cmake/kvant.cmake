# Helpers that every room's CMakeLists.txt uses.

# kvant_room(NAME SOURCES... DEPENDS targets...): a static library kvant_NAME.
function(kvant_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(kvant_${name} STATIC ${ROOM_SOURCES})
  target_link_libraries(kvant_${name} PUBLIC kvant_options ${ROOM_DEPENDS})
endfunction()

# kvant_label(NAME labels...): the labels of the test NAME; the target tests_LABEL builds all programs of a label.
function(kvant_label name)
  if(TEST ${name})  # not the name of a program whose shards are tests
    set_tests_properties(${name} PROPERTIES LABELS "${ARGN}")
  endif()
  foreach(label IN LISTS ARGN)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()

# What makes tests of this build ten times slower than a release's and more; "" where nothing does.
set(KVANT_SLOW_BUILD "${KVANT_SANITIZE}")
if(CMAKE_CROSSCOMPILING_EMULATOR)
  list(GET CMAKE_CROSSCOMPILING_EMULATOR 0 emulator)
  get_filename_component(KVANT_SLOW_BUILD "${emulator}" NAME)
endif()

# kvant_test(NAME [LONG] [SHARDS n] [LABEL fast|slow|threads…] SOURCES... DEPENDS targets...): one GoogleTest program per
# noun, in CTest under its own name; `fast` unless said otherwise. A LONG one starts first, so that it doesn't run on alone
# at the end; with SHARDS it is n tests NAME/0, NAME/1…, which run at once and share the cases out.
# KVANT_TEST_DATA is the folder tests/data; KVANT_SANITIZED names the sanitizers, "" for none; tests/slow_build.h is about
# KVANT_SLOW_BUILD.
function(kvant_test name)
  cmake_parse_arguments(TEST "LONG" "SHARDS" "LABEL;SOURCES;DEPENDS" ${ARGN})
  if(NOT TEST_LABEL)
    set(TEST_LABEL fast)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_DEPENDS} ${KVANT_GTEST})
  target_compile_definitions(${name} PRIVATE KVANT_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
    KVANT_SANITIZED="${KVANT_SANITIZE}" KVANT_SLOW_BUILD="${KVANT_SLOW_BUILD}")
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  set(tests ${name})
  if(TEST_SHARDS)
    math(EXPR last "${TEST_SHARDS} - 1")
    set(tests "")
    foreach(shard RANGE ${last})
      list(APPEND tests ${name}/${shard})
      add_test(NAME ${name}/${shard} COMMAND sh ${PROJECT_SOURCE_DIR}/tests/shard.sh ${shard} ${TEST_SHARDS}
        ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:${name}>)
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
  foreach(test IN LISTS tests)
    set_tests_properties(${test} PROPERTIES LABELS "${TEST_LABEL}")
    if(TEST_LONG)
      set_tests_properties(${test} PROPERTIES COST 1000)
    endif()
  endforeach()
  kvant_label(${name} ${TEST_LABEL})
endfunction()

# kvant_fuzz(NAME SOURCES... DEPENDS targets...): one fuzz target, whose seeds are tests/data/fuzz/NAME. Everywhere it is a
# test that runs over the seeds, so that what they found once stays found; with KVANT_FUZZ that program is libFuzzer's.
# The target `fuzzers` builds them all, and fuzz-targets.txt lists the programs.
function(kvant_fuzz name)
  cmake_parse_arguments(FUZZ "" "" "SOURCES;DEPENDS" ${ARGN})
  set(seeds ${PROJECT_SOURCE_DIR}/tests/data/fuzz/${name})
  add_executable(${name} ${FUZZ_SOURCES})
  target_link_libraries(${name} PRIVATE ${FUZZ_DEPENDS})
  if(KVANT_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_test(NAME ${name} COMMAND ${name} -runs=0 ${seeds})
    set_property(GLOBAL APPEND PROPERTY kvant_fuzz_programs $<TARGET_FILE:${name}>)
  else()
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.cc)
    add_test(NAME ${name} COMMAND ${name} ${seeds})
  endif()
  kvant_label(${name} fast)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${name})
endfunction()
