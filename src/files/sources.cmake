# SPDX-License-Identifier: Apache-2.0
set(MEGADP_files_SOURCES safetensors_json.cc)
