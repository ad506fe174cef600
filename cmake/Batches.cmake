# SPDX-License-Identifier: Apache-2.0
# megadp_batches(TARGET [APART FILE...]): compiles the target's C++ sources a dozen at a time, since most of their time goes into headers that
# they share: the library in half the time. Apart stay sources with options of their own, and those named here: their private names are
# another's too, or they are large by themselves. tests/source/own_includes.py sees to it that none lives on another's includes. Who waits
# for single sources, as with the preset for debugging, turns MEGADP_BATCHES off.
option(MEGADP_BATCHES "Compile sources a dozen at a time" ON)
function(megadp_batches target)
  if(NOT MEGADP_BATCHES)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" APART)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  list(TRANSFORM arg_APART PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_source_files_properties(${arg_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  # A batch is no header: what it includes may well use private names.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()
