# Helpers that every room's CMakeLists.txt uses.

# kvant_room(NAME SOURCES... DEPENDS targets...): a static library kvant_NAME.
function(kvant_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(kvant_${name} STATIC ${ROOM_SOURCES})
  target_link_libraries(kvant_${name} PUBLIC kvant_options ${ROOM_DEPENDS})
endfunction()

# kvant_label(NAME labels...): the labels of the test NAME; the target tests_LABEL builds all programs of a label.
function(kvant_label name)
  set_tests_properties(${name} PROPERTIES LABELS "${ARGN}")
  foreach(label IN LISTS ARGN)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()

# kvant_test(NAME [LABEL fast|slow|threads…] SOURCES... DEPENDS targets...): one GoogleTest program per noun, in CTest
# under its own name; `fast` unless said otherwise. KVANT_TEST_DATA is the folder tests/data.
function(kvant_test name)
  cmake_parse_arguments(TEST "" "" "LABEL;SOURCES;DEPENDS" ${ARGN})
  if(NOT TEST_LABEL)
    set(TEST_LABEL fast)
  endif()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_DEPENDS} ${KVANT_GTEST})
  target_compile_definitions(${name} PRIVATE KVANT_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  add_test(NAME ${name} COMMAND ${name})
  kvant_label(${name} ${TEST_LABEL})
endfunction()

# kvant_fuzz(NAME SOURCES... DEPENDS targets...): one fuzz target, whose seeds are tests/data/fuzz/NAME. With KVANT_FUZZ a
# libFuzzer program, listed in fuzz-targets.txt; without it a test that runs over the seeds, so that what they found once
# stays found.
function(kvant_fuzz name)
  cmake_parse_arguments(FUZZ "" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT KVANT_FUZZ)
    add_executable(${name} ${FUZZ_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.cc)
    target_link_libraries(${name} PRIVATE ${FUZZ_DEPENDS})
    add_test(NAME ${name} COMMAND ${name} ${PROJECT_SOURCE_DIR}/tests/data/fuzz/${name})
    kvant_label(${name} fast)
    return()
  endif()
  add_executable(${name} ${FUZZ_SOURCES})
  target_link_libraries(${name} PRIVATE ${FUZZ_DEPENDS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  file(APPEND ${PROJECT_BINARY_DIR}/fuzz-targets.txt "${name}\n")
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${name})
endfunction()
