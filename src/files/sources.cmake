# SPDX-License-Identifier: Apache-2.0
# xxHash: its header alone.
find_path(MEGADP_XXHASH_INCLUDE xxhash.h)
if(NOT MEGADP_XXHASH_INCLUDE)
  message(FATAL_ERROR "The header of xxHash (xxhash.h, 0.8.0 or newer) is missing; on Debian and Ubuntu: apt-get install libxxhash-dev")
endif()
target_include_directories(megadp_objects SYSTEM PRIVATE ${MEGADP_XXHASH_INCLUDE})

set(MEGADP_files_SOURCES checkpoint_folder.cc checksum.cc folder.cc json_value.cc manifest_json.cc model_files.cc safetensors_file.cc safetensors_json.cc)
