# SPDX-License-Identifier: Apache-2.0
# Highway: its headers alone; which SIMD target to run is decided in simd.cc, so that libhwy is not needed.
find_path(MEGADP_HIGHWAY_INCLUDE hwy/highway.h)
if(NOT MEGADP_HIGHWAY_INCLUDE)
  message(FATAL_ERROR "The headers of Highway (hwy/highway.h, 1.0.3 or newer) are missing; on Debian and Ubuntu: apt-get install libhwy-dev")
endif()
target_include_directories(megadp_objects SYSTEM PRIVATE ${MEGADP_HIGHWAY_INCLUDE})

# UCX: its header only; the library is loaded when ranks are on several hosts. Without the header sockets remain.
find_path(MEGADP_UCX_INCLUDE ucp/api/ucp.h)
if(MEGADP_UCX_INCLUDE)
  target_include_directories(megadp_objects SYSTEM PRIVATE ${MEGADP_UCX_INCLUDE})
  target_compile_definitions(megadp_objects PRIVATE MEGADP_HAVE_UCX)
else()
  message(WARNING "ucp/api/ucp.h is missing: ranks of several hosts will need MEGADP_TRANSPORT=sockets (on Debian and Ubuntu: apt-get install libucx-dev)")
endif()

set(MEGADP_host_SOURCES
    attention.cc
    backend.cc
    blas_gemm.cc
    copy_past.cc
    copy_strided.cc
    event.cc
    exchange.cc
    gemm.cc
    gemm_blocks.cc
    gemm_library.cc
    group.cc
    group_network.cc
    group_setup.cc
    kernels.cc
    kernels_cast.cc
    kernels_reduce.cc
    kernels_step.cc
    kernels_vocabulary.cc
    memory.cc
    messages.cc
    network_devices.cc
    node_collectives.cc
    onednn_gemm.cc
    onednn_plan.cc
    operation.cc
    pipe.cc
    private_in_child.cc
    shared_memory.cc
    submissions.cc
    simd.cc
    socket_transport.cc
    staged_collectives.cc
    stream.cc
    sync.cc
    thread_pool.cc
    transport.cc
    ucx_library.cc
    ucx_network.cc
    ucx_transport.cc
    update_and_gather.cc update_blocks.cc
    vocabulary.cc
    window_collectives.cc)

# Under sanitizers the rest is not optimized. AddressSanitizer's watch over the scope of each vector, all of them short-lived and in registers
# otherwise, takes three quarters of the time to compile these.
set(MEGADP_KERNELS host/copy_past.cc host/copy_strided.cc host/kernels.cc host/kernels_cast.cc host/kernels_reduce.cc host/kernels_step.cc
                   host/kernels_vocabulary.cc)
if(MEGADP_SANITIZE)
  set_source_files_properties(${MEGADP_KERNELS} PROPERTIES COMPILE_OPTIONS "-O1;-fno-sanitize-address-use-after-scope")
endif()
