# SPDX-License-Identifier: Apache-2.0
set(MEGADP_api_SOURCES
    backends.cc
    buffer.cc
    checkpoint.cc
    collectives.cc
    comm.cc
    config.cc
    context.cc
    dlpack.cc
    error.cc
    event.cc
    grid.cc
    halo.cc
    handle.cc
    info.cc
    intake.cc
    optimizer.cc
    optimizer_config.cc optimizer_step.cc
    plan.cc
    request.cc
    step.cc
    tensor.cc
    tp.cc
    tp_vocabulary.cc)
