# SPDX-License-Identifier: Apache-2.0
"""
Data-parallel training: gradients are reduced while backward goes on, optimizer state is sharded over the ranks. See [`DataParallel`](@ref)
for whole models, [`Buffer`](@ref) and [`Optimizer`](@ref) for the parts, [`Comm`](@ref) for collectives, `MegaDP.Raw` for the C functions.

Ranks are counted from 0, as everywhere in message passing; parameters, buckets, groups and dimensions from 1, as everywhere in Julia.
"""
module MegaDP

using LinearAlgebra: Adjoint, Diagonal, Hermitian, Symmetric, Transpose, diag

include("raw.jl")
include("errors.jl")
include("handles.jl")
include("requests.jl")
include("arrays.jl")
include("bootstrap.jl")
include("comm.jl")
include("grid.jl")
include("buffer.jl")
include("lent.jl")
include("optimizer.jl")
include("pieces.jl")
include("scaler.jl")
include("tree.jl")
include("synchronize.jl")
include("shared_memory.jl")
include("data_parallel.jl")
include("checkpoint.jl")
include("overlap.jl")
include("tp_region.jl")
include("tp_linear.jl")
include("tp_vocabulary.jl")
include("halo.jl")
include("cp_block.jl")
include("cp.jl")

export Buffer, CheckpointTensor, Comm, CpAttention, DataParallel, DistributedBackend, DistributedDataContainer, DistributedOptimizer, Grid, Halo, MegaDPError, Optimizer, Param, Request, Scaler, TpCrossEntropy, TpEmbedding, TpLinear, TpRegion
export abort, acquire_grad, allgather!, allgather_v!, allreduce!, alltoall!, alltoall_v!, averaged, avg, barrier, bcast!, bucket, bucket_count, changed!,
       checkpoint_damage, checkpoint_data, checkpoint_info, conv_split, coordinates, cp_part, exchange!, export_checkpoint, finish!, verify_checkpoint, grad_norm, grad_summaries, grad_view, grads_changed!, load_checkpoint!, local_rank, lost, microbatch!, overlap, owned, owned_grad, param_view, random_seed, ready!, recv!,
       reduce_scatter!, reduce_scatter_v!, release_grad!, save_checkpoint, scale_grads!, send, send_recv!, set_param_group!, set_scaler!, set_steps!, skip!, start!, stats, step!, step_many!, swap_average!, sync!, synchronize!!,
       tokens!, total_workers, unique_id, update_halo!, use_order, verify, world_rank, write!, zero_grad!

end
