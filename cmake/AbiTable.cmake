# SPDX-License-Identifier: Apache-2.0
# Writes lib/abi.json beside the library: what every binding compares its own mirror of the structs with.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(abi_source ${CMAKE_BINARY_DIR}/abi/print_abi.c)
set(abi_json ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/abi.json)
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/abi)
add_custom_command(
  OUTPUT ${abi_source}
  COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/cmake/abi_table.py ${PROJECT_SOURCE_DIR}/include/megadp.h ${abi_source} --version
          ${PROJECT_VERSION} --arch ${CMAKE_SYSTEM_PROCESSOR}
  DEPENDS ${PROJECT_SOURCE_DIR}/cmake/abi_table.py ${public_headers}
  COMMENT "Reading megadp.h" VERBATIM)
add_executable(megadp_print_abi ${abi_source})
target_include_directories(megadp_print_abi PRIVATE ${PROJECT_SOURCE_DIR}/include)
set_target_properties(megadp_print_abi PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/abi)
add_custom_command(
  OUTPUT ${abi_json}
  COMMAND megadp_print_abi > ${abi_json}.new
  COMMAND ${CMAKE_COMMAND} -E rename ${abi_json}.new ${abi_json}
  DEPENDS megadp_print_abi
  COMMENT "Writing lib/abi.json" VERBATIM)
add_custom_target(megadp_abi_json ALL DEPENDS ${abi_json})
# It is installed with the library, so whoever builds the library alone (scripts/demo) gets it too.
add_dependencies(megadp megadp_abi_json)
