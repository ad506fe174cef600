# SPDX-License-Identifier: Apache-2.0
# megadp_batches(TARGET [APART FILE...]): compiles the target's C++ sources a dozen at a time, since most of their time goes into headers that
# they share: the library in half the time. Apart stay those named here, which have options of their own, have private names that are
# another's too, or are large by themselves. tests/source/own_includes.py sees to it that none lives on another's includes. Who waits for
# single sources, as with the preset for debugging, turns MEGADP_BATCHES off.
# This is not CMake's UNITY_BUILD, whose batches name sources by where the tree lies: a compiler cache would not know them in another clone,
# nor where a packaged crate builds the library.
option(MEGADP_BATCHES "Compile sources a dozen at a time" ON)
function(megadp_batches target)
  if(NOT MEGADP_BATCHES)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" APART)
  list(TRANSFORM arg_APART PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/batches)
  set(batch "")
  set(number 0)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    if(NOT source IN_LIST arg_APART)
      set_source_files_properties(${source} PROPERTIES HEADER_FILE_ONLY ON) # compiled as a part of its batch
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${folder})
      list(APPEND batch ${source})
    endif()
  endforeach()
  while(batch)
    list(SUBLIST batch 0 12 dozen)
    list(REMOVE_ITEM batch ${dozen})
    list(TRANSFORM dozen REPLACE "(.+)" "#include \"\\1\"\n")
    string(CONCAT text ${dozen})
    file(CONFIGURE OUTPUT ${folder}/${target}_${number}.cc CONTENT "${text}")
    target_sources(${target} PRIVATE ${folder}/${target}_${number}.cc)
    math(EXPR number "${number} + 1")
  endwhile()
  # A batch is no header: what it includes may well use private names.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()
