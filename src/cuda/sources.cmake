# SPDX-License-Identifier: Apache-2.0
# The part of the CUDA backend that needs no CUDA to be compiled; the plugin is in plugin/.
set(MEGADP_cuda_SOURCES
    at_work.cc
    backend.cc
    communicator.cc
    copy.cc
    direction.cc
    event.cc
    exchange.cc
    gemm.cc
    gpu.cc
    group.cc
    lanes.cc
    launch_order.cc
    launcher.cc
    member.cc
    member_order.cc
    member_sums.cc
    memory.cc
    plugin_library.cc
    staging.cc
    stream.cc
    watch.cc)
