# SPDX-License-Identifier: Apache-2.0
set(MEGADP_core_SOURCES
    arenas.cc buffer.cc channel.cc checkpoint.cc checkpoint_arrays.cc checkpoint_export.cc checkpoint_load.cc checkpoint_load_arrays.cc checkpoint_load_progress.cc checkpoint_save.cc checkpoint_source.cc
    checkpoint_write.cc comm.cc context_attention.cc context_cutting.cc context_heads.cc context_ring.cc conv_split.cc copies.cc cutting.cc grad.cc grad_checks.cc grad_instances.cc grad_kept.cc grad_order.cc grad_owned_sums.cc grad_pool.cc grad_squares.cc grad_summary.cc grad_sync.cc
    grad_tokens.cc grad_wire.cc gradients.cc grid.cc halo.cc halo_plan.cc process_grid.cc
    layout.cc optimizer.cc optimizer_average.cc optimizer_json.cc optimizer_param_states.cc optimizer_pieces.cc optimizer_random.cc optimizer_step.cc optimizer_together.cc optimizer_unchecked.cc optimizer_verify.cc param.cc params.cc plan.cc plan_json.cc plan_memory.cc plan_owners.cc reduced_grads.cc registration.cc
    replicas.cc request.cc saves.cc scratch.cc spill.cc step_changes.cc step_values.cc ties.cc tp_collectives.cc tp_linear.cc tp_linear_bwd.cc tp_linear_chunks.cc tp_operands.cc tp_region.cc tp_shape.cc tp_vocabulary.cc transfer.cc update_check.cc verify.cc)
