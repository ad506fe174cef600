# SPDX-License-Identifier: Apache-2.0
set(MEGADP_api_SOURCES
    buffer.cc
    collectives.cc
    comm.cc
    config.cc
    dlpack.cc
    error.cc
    event.cc
    grid.cc
    handle.cc
    info.cc
    intake.cc
    optimizer.cc
    plan.cc
    request.cc
    step.cc
    tensor.cc)
