# SPDX-License-Identifier: Apache-2.0
# The stand-in for the CUDA plugin, linked into the tests that use it.
add_library(megadp_cuda_standin OBJECT ${CMAKE_CURRENT_LIST_DIR}/standin_device.cc ${CMAKE_CURRENT_LIST_DIR}/standin_gemm.cc
                                       ${CMAKE_CURRENT_LIST_DIR}/standin_nccl.cc)
target_link_libraries(megadp_cuda_standin PRIVATE megadp_objects)
target_compile_definitions(megadp_cuda_standin PRIVATE MEGADP_VERSION_STRING="${PROJECT_VERSION}" MEGADP_BUILD="${MEGADP_BUILD}")
# It computes products one number at a time, which takes most of the time of tests that use them.
target_compile_options(megadp_cuda_standin PRIVATE $<$<BOOL:${MEGADP_SANITIZE}>:-O1>)
target_include_directories(megadp_cuda_standin INTERFACE ${CMAKE_CURRENT_LIST_DIR})
