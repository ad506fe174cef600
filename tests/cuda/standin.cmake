# SPDX-License-Identifier: Apache-2.0
# The stand-in for the CUDA plugin, linked into the tests that use it.
add_library(megadp_cuda_standin OBJECT ${CMAKE_CURRENT_LIST_DIR}/standin_device.cc ${CMAKE_CURRENT_LIST_DIR}/standin_gemm.cc
                                       ${CMAKE_CURRENT_LIST_DIR}/standin_nccl.cc)
target_link_libraries(megadp_cuda_standin PRIVATE megadp_objects)
target_compile_definitions(megadp_cuda_standin PRIVATE MEGADP_VERSION_STRING="${PROJECT_VERSION}" MEGADP_BUILD="${MEGADP_BUILD}")
# In a library that is loaded later glibc would allocate a thread's variables when they are first used, and free them in whichever thread
# reuses its stack: ThreadSanitizer does not see how glibc orders the two.
target_compile_options(megadp_cuda_standin PRIVATE -ftls-model=initial-exec)
target_include_directories(megadp_cuda_standin INTERFACE ${CMAKE_CURRENT_LIST_DIR})
