# SPDX-License-Identifier: Apache-2.0
# Written by bindings/generate.py from include/megadp.h; not to be edited.

"""
What megadp.h declares, under its own names. Handles and pointers are taken as they are in C (a `Ref` where C writes through a pointer), and
every function returns what C returns. A function given to `mdp_log_set` must not be Julia code: it may be called while this thread has
told the collector that it runs none. `begin` and `end`, words of Julia, are called `start` and `stop`.
"""
module Raw

import Libdl

"""
`ccall`, for functions that may wait for another rank: meanwhile the collector of another Julia thread need not wait for this one.
Nothing but the call stands between the two marks: Julia's memory must not be touched there.
"""
macro waiting(entry, result, types, arguments...)
    kept = [gensym(:kept) for _ in arguments]
    plain = [gensym(:plain) for _ in arguments]
    keep = [:($k = Base.cconvert($t, $(esc(a)))) for (k, t, a) in zip(kept, types.args, arguments)]
    lower = [:($p = Base.unsafe_convert($t, $k)) for (p, t, k) in zip(plain, types.args, kept)]
    quote
        entry = $entry
        $(keep...)
        GC.@preserve $(kept...) begin
            $(lower...)
            state = ccall(:jl_gc_safe_enter, Int8, ())
            result = ccall(entry, $result, $types, $(plain...))
            ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
            result
        end
    end
end

mutable struct mdp_comm end
mutable struct mdp_grid end
mutable struct mdp_buffer end
mutable struct mdp_optimizer end
mutable struct mdp_request end
mutable struct DLManagedTensorVersioned end

const mdp_stream = Ptr{Cvoid}
const mdp_status = Int32
const mdp_backend = UInt32
const mdp_dtype = UInt32
const mdp_op = UInt32
const mdp_param_class = UInt32
const mdp_placement = UInt32
const mdp_sharding = UInt32
const mdp_rule = UInt32
const mdp_missing = UInt32
const mdp_bucket_state = UInt32
const mdp_log_level = Int32

struct mdp_unique_id
    bytes::NTuple{128, UInt8}
end

struct mdp_error_info
    struct_size::UInt32
    status::mdp_status
    rank::Int32
    bucket::Int32
    param::Int64
    operation::UInt64
    text::NTuple{1024, UInt8}
end

struct mdp_bootstrap
    struct_size::UInt32
    reserved::UInt32
    context::Ptr{Cvoid}
    allgather_start::Ptr{Cvoid}
    allgather_test::Ptr{Cvoid}
    allgather_free::Ptr{Cvoid}
end
mdp_bootstrap(; reserved = 0, context = C_NULL, allgather_start = C_NULL, allgather_test = C_NULL, allgather_free = C_NULL) =
    mdp_bootstrap(sizeof(mdp_bootstrap), reserved, context, allgather_start, allgather_test, allgather_free)

struct mdp_comm_config
    struct_size::UInt32
    backend::mdp_backend
    rank::Int32
    size::Int32
    device::Int32
    reserved::Int32
    timeout_ns::UInt64
    flags::UInt64
    bootstrap::Ptr{mdp_bootstrap}
end
mdp_comm_config(; backend = 0, rank = 0, size = 0, device = 0, reserved = 0, timeout_ns = 0, flags = 0, bootstrap = C_NULL) =
    mdp_comm_config(sizeof(mdp_comm_config), backend, rank, size, device, reserved, timeout_ns, flags, bootstrap)

struct mdp_grid_config
    struct_size::UInt32
    tp::Int32
    cp::Int32
    ep::Int32
    pp::Int32
    expert_tp::Int32
    instances::Int32
    reserved::Int32
    order::Ptr{UInt8}
    flags::UInt64
end
mdp_grid_config(; tp = 0, cp = 0, ep = 0, pp = 0, expert_tp = 0, instances = 0, reserved = 0, order = C_NULL, flags = 0) =
    mdp_grid_config(sizeof(mdp_grid_config), tp, cp, ep, pp, expert_tp, instances, reserved, order, flags)

struct mdp_tensor
    struct_size::UInt32
    dtype::mdp_dtype
    device_type::Int32
    device_id::Int32
    ndim::Int32
    reserved::UInt32
    data::Ptr{Cvoid}
    shape::Ptr{Int64}
    strides::Ptr{Int64}
end
mdp_tensor(; dtype = 0, device_type = 0, device_id = 0, ndim = 0, reserved = 0, data = C_NULL, shape = C_NULL, strides = C_NULL) =
    mdp_tensor(sizeof(mdp_tensor), dtype, device_type, device_id, ndim, reserved, data, shape, strides)

struct mdp_param
    struct_size::UInt32
    dtype::mdp_dtype
    name::Ptr{UInt8}
    shape::Ptr{Int64}
    ndim::Int32
    uses_per_step::Int32
    param_class::mdp_param_class
    placement::mdp_placement
    shard_dim::Int32
    shard_stride::Int32
    param_group::Int32
    reserved::Int32
    flags::UInt64
end
mdp_param(; dtype = 0, name = C_NULL, shape = C_NULL, ndim = 0, uses_per_step = 0, param_class = 0, placement = 0, shard_dim = 0, shard_stride = 0, param_group = 0, reserved = 0, flags = 0) =
    mdp_param(sizeof(mdp_param), dtype, name, shape, ndim, uses_per_step, param_class, placement, shard_dim, shard_stride, param_group, reserved, flags)

struct mdp_buffer_config
    struct_size::UInt32
    grad_dtype::mdp_dtype
    sharding::mdp_sharding
    missing::mdp_missing
    bucket_elements::UInt64
    bucket_count::UInt64
    flags::UInt64
end
mdp_buffer_config(; grad_dtype = 0, sharding = 0, missing = 0, bucket_elements = 0, bucket_count = 0, flags = 0) =
    mdp_buffer_config(sizeof(mdp_buffer_config), grad_dtype, sharding, missing, bucket_elements, bucket_count, flags)

struct mdp_plan_report
    struct_size::UInt32
    reserved::UInt32
    param_bytes::UInt64
    grad_bytes::UInt64
    grad_shard_bytes::UInt64
    master_bytes::UInt64
    state_bytes::UInt64
    scratch_bytes::UInt64
    padding_elements::UInt64
    buckets::UInt64
    owned_elements::UInt64
    communicator_bytes::UInt64
end
mdp_plan_report(; reserved = 0, param_bytes = 0, grad_bytes = 0, grad_shard_bytes = 0, master_bytes = 0, state_bytes = 0, scratch_bytes = 0, padding_elements = 0, buckets = 0, owned_elements = 0, communicator_bytes = 0) =
    mdp_plan_report(sizeof(mdp_plan_report), reserved, param_bytes, grad_bytes, grad_shard_bytes, master_bytes, state_bytes, scratch_bytes, padding_elements, buckets, owned_elements, communicator_bytes)

struct mdp_range
    struct_size::UInt32
    reserved::UInt32
    arena::Int64
    bucket::Int64
    param::Int64
    start::Int64
    stop::Int64
    param_begin::Int64
end
mdp_range(; reserved = 0, arena = 0, bucket = 0, param = 0, start = 0, stop = 0, param_begin = 0) =
    mdp_range(sizeof(mdp_range), reserved, arena, bucket, param, start, stop, param_begin)

struct mdp_param_group
    struct_size::UInt32
    reserved::UInt32
    lr::Cdouble
    weight_decay::Cdouble
    flags::UInt64
end
mdp_param_group(; reserved = 0, lr = 0, weight_decay = 0, flags = 0) =
    mdp_param_group(sizeof(mdp_param_group), reserved, lr, weight_decay, flags)

struct mdp_optimizer_config
    struct_size::UInt32
    rule::mdp_rule
    lr::Cdouble
    beta1::Cdouble
    beta2::Cdouble
    eps::Cdouble
    weight_decay::Cdouble
    max_grad_norm::Cdouble
    param_groups::Ptr{mdp_param_group}
    param_group_count::UInt64
    flags::UInt64
end
mdp_optimizer_config(; rule = 0, lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, max_grad_norm = 0, param_groups = C_NULL, param_group_count = 0, flags = 0) =
    mdp_optimizer_config(sizeof(mdp_optimizer_config), rule, lr, beta1, beta2, eps, weight_decay, max_grad_norm, param_groups, param_group_count, flags)

struct mdp_step_config
    struct_size::UInt32
    reserved::UInt32
    lr::Cdouble
    loss_scale::Cdouble
    stream::Ptr{Cvoid}
    flags::UInt64
end
mdp_step_config(; reserved = 0, lr = 0, loss_scale = 0, stream = C_NULL, flags = 0) =
    mdp_step_config(sizeof(mdp_step_config), reserved, lr, loss_scale, stream, flags)

struct mdp_step_report
    struct_size::UInt32
    reserved::UInt32
    grad_norm::Cdouble
    clip_factor::Cdouble
    loss_scale::Cdouble
    step::UInt64
    flags::UInt64
end
mdp_step_report(; reserved = 0, grad_norm = 0, clip_factor = 0, loss_scale = 0, step = 0, flags = 0) =
    mdp_step_report(sizeof(mdp_step_report), reserved, grad_norm, clip_factor, loss_scale, step, flags)

struct mdp_stats_report
    struct_size::UInt32
    reserved::UInt32
    comm_ns::UInt64
    exposed_ns::UInt64
    bytes::UInt64
    buckets::UInt64
    launched_in_backward::UInt64
    syncs::UInt64
    host_syncs::UInt64
end
mdp_stats_report(; reserved = 0, comm_ns = 0, exposed_ns = 0, bytes = 0, buckets = 0, launched_in_backward = 0, syncs = 0, host_syncs = 0) =
    mdp_stats_report(sizeof(mdp_stats_report), reserved, comm_ns, exposed_ns, bytes, buckets, launched_in_backward, syncs, host_syncs)

struct mdp_bucket_report
    struct_size::UInt32
    state::mdp_bucket_state
    ready_ns::UInt64
    reduce_begin_ns::UInt64
    reduce_end_ns::UInt64
    gather_begin_ns::UInt64
    gather_end_ns::UInt64
    sync_ns::UInt64
end
mdp_bucket_report(; state = 0, ready_ns = 0, reduce_begin_ns = 0, reduce_end_ns = 0, gather_begin_ns = 0, gather_end_ns = 0, sync_ns = 0) =
    mdp_bucket_report(sizeof(mdp_bucket_report), state, ready_ns, reduce_begin_ns, reduce_end_ns, gather_begin_ns, gather_end_ns, sync_ns)

const MDP_OK = Int32(0)
const MDP_PENDING = Int32(1)
const MDP_E_INVALID = Int32(-1)
const MDP_E_STATE = Int32(-2)
const MDP_E_UNSUPPORTED = Int32(-3)
const MDP_E_MEMORY = Int32(-4)
const MDP_E_SYSTEM = Int32(-5)
const MDP_E_BACKEND = Int32(-6)
const MDP_E_PEER = Int32(-7)
const MDP_E_TIMEOUT = Int32(-8)
const MDP_E_DESYNC = Int32(-9)
const MDP_E_ABORTED = Int32(-10)
const MDP_E_NUMERIC = Int32(-11)
const MDP_E_CORRUPT = Int32(-12)
const MDP_E_INTERNAL = Int32(-13)

const MDP_BACKEND_AUTO = UInt32(0)
const MDP_BACKEND_HOST = UInt32(1)
const MDP_BACKEND_CUDA = UInt32(2)

const MDP_DTYPE_DEFAULT = UInt32(0)
const MDP_DTYPE_SAME = UInt32(1)
const MDP_DTYPE_F32 = UInt32(2)
const MDP_DTYPE_BF16 = UInt32(3)
const MDP_DTYPE_F16 = UInt32(4)
const MDP_DTYPE_F64 = UInt32(5)
const MDP_DTYPE_I64 = UInt32(6)
const MDP_DTYPE_U8 = UInt32(7)

const MDP_OP_SUM = UInt32(0)
const MDP_OP_AVG = UInt32(1)
const MDP_OP_MAX = UInt32(2)
const MDP_OP_MIN = UInt32(3)

const MDP_COMM_SET_DEVICE = Int(1)
const MDP_COMM_EXACT_SUMS = Int(2)
const MDP_COMM_SOCKETS = Int(4)

const MDP_AXIS_TP = Int(1)
const MDP_AXIS_CP = Int(2)
const MDP_AXIS_EP = Int(4)
const MDP_AXIS_DP = Int(8)
const MDP_AXIS_PP = Int(16)
const MDP_AXIS_EXPERT_GRID = Int(256)

const MDP_PARAM_CLASS_DENSE = UInt32(0)
const MDP_PARAM_CLASS_EXPERT = UInt32(1)

const MDP_PLACEMENT_UNSET = UInt32(0)
const MDP_PLACEMENT_REPLICATED = UInt32(1)
const MDP_PLACEMENT_SHARDED = UInt32(2)

const MDP_SHARDING_DEFAULT = UInt32(0)
const MDP_SHARDING_ZERO_0 = UInt32(1)
const MDP_SHARDING_ZERO_1 = UInt32(2)

const MDP_RULE_ADAMW = UInt32(0)

const MDP_MISSING_ERROR = UInt32(0)
const MDP_MISSING_ZERO = UInt32(1)
const MDP_MISSING_SKIP = UInt32(2)

const MDP_PARAM_FROZEN = Int(1)
const MDP_PARAM_OWN_BUCKET = Int(2)

const MDP_BUFFER_NO_OVERLAP = Int(1)
const MDP_BUFFER_HIGH_BANDWIDTH_PADDING = Int(2)
const MDP_BUFFER_REFERENCE_BUCKETS = Int(4)
const MDP_BUFFER_IGNORE_MEMORY = Int(8)

const MDP_GRAD_ADD = Int(1)
const MDP_GRAD_MORE = Int(2)

const MDP_PARAM_GROUP_SET_LR = Int(1)
const MDP_PARAM_GROUP_SET_WEIGHT_DECAY = Int(2)

const MDP_OPTIMIZER_SET_LR = Int(1)
const MDP_OPTIMIZER_SET_BETA1 = Int(2)
const MDP_OPTIMIZER_SET_BETA2 = Int(4)

const MDP_STEP_SET_LR = Int(1)

const MDP_STEPPED_SKIPPED = Int(1)
const MDP_STEPPED_CLIPPED = Int(2)

const MDP_BUCKET_FILLING = UInt32(0)
const MDP_BUCKET_READY = UInt32(1)
const MDP_BUCKET_IN_FLIGHT = UInt32(2)
const MDP_BUCKET_REDUCED = UInt32(3)
const MDP_BUCKET_GATHERING = UInt32(4)
const MDP_BUCKET_WHOLE = UInt32(5)

const MDP_LOG_ERROR = Int32(0)
const MDP_LOG_WARNING = Int32(1)
const MDP_LOG_INFO = Int32(2)
const MDP_LOG_DEBUG = Int32(3)

const FUNCTIONS = (
    :mdp_version,
    :mdp_status_name,
    :mdp_last_error,
    :mdp_last_error_info,
    :mdp_info,
    :mdp_log_set,
    :mdp_unique_id_create,
    :mdp_comm_create,
    :mdp_comm_split,
    :mdp_comm_rank,
    :mdp_comm_size,
    :mdp_comm_world_rank,
    :mdp_comm_error_info,
    :mdp_comm_event_fd,
    :mdp_comm_abort,
    :mdp_comm_destroy,
    :mdp_all_reduce,
    :mdp_reduce_scatter,
    :mdp_all_gather,
    :mdp_all_to_all,
    :mdp_broadcast,
    :mdp_barrier,
    :mdp_reduce_scatter_v,
    :mdp_all_gather_v,
    :mdp_all_to_all_v,
    :mdp_send,
    :mdp_recv,
    :mdp_send_recv,
    :mdp_grid_create,
    :mdp_grid_coords,
    :mdp_grid_comm,
    :mdp_grid_destroy,
    :mdp_grid_groups_json,
    :mdp_plan,
    :mdp_plan_json,
    :mdp_buffer_register,
    :mdp_buffer_owned,
    :mdp_buffer_find,
    :mdp_buffer_counts,
    :mdp_buffer_param_view,
    :mdp_buffer_grad_view,
    :mdp_buffer_to_dlpack,
    :mdp_buffer_broadcast,
    :mdp_buffer_verify,
    :mdp_buffer_zero_grad,
    :mdp_buffer_stats,
    :mdp_buffer_bucket,
    :mdp_buffer_destroy,
    :mdp_microbatch_begin,
    :mdp_param_wait,
    :mdp_param_read,
    :mdp_param_write,
    :mdp_param_changed,
    :mdp_grad_put,
    :mdp_grad_ready,
    :mdp_grad_skip,
    :mdp_grad_sync,
    :mdp_grad_norm,
    :mdp_grad_scale,
    :mdp_grad_changed,
    :mdp_optimizer_create,
    :mdp_optimizer_set_param_group,
    :mdp_optimizer_step,
    :mdp_optimizer_state,
    :mdp_optimizer_steps,
    :mdp_optimizer_destroy,
    :mdp_request_test,
    :mdp_request_wait,
    :mdp_request_free,
)

mdp_version() =
    ccall(entries[1], UInt32, ())
mdp_status_name(status) =
    ccall(entries[2], Cstring, (mdp_status,), status)
mdp_last_error() =
    ccall(entries[3], Cstring, ())
mdp_last_error_info(out) =
    ccall(entries[4], mdp_status, (Ptr{mdp_error_info},), out)
mdp_info(json, capacity, needed) =
    ccall(entries[5], mdp_status, (Ptr{UInt8}, Csize_t, Ptr{Csize_t}), json, capacity, needed)
mdp_log_set(fn, user) =
    ccall(entries[6], mdp_status, (Ptr{Cvoid}, Ptr{Cvoid}), fn, user)
mdp_unique_id_create(out) =
    ccall(entries[7], mdp_status, (Ptr{mdp_unique_id},), out)
mdp_comm_create(config, id, out) =
    @waiting(entries[8], mdp_status, (Ptr{mdp_comm_config}, Ptr{mdp_unique_id}, Ptr{Ptr{mdp_comm}}), config, id, out)
mdp_comm_split(comm, color, key, out) =
    @waiting(entries[9], mdp_status, (Ptr{mdp_comm}, Int32, Int32, Ptr{Ptr{mdp_comm}}), comm, color, key, out)
mdp_comm_rank(comm) =
    ccall(entries[10], Int32, (Ptr{mdp_comm},), comm)
mdp_comm_size(comm) =
    ccall(entries[11], Int32, (Ptr{mdp_comm},), comm)
mdp_comm_world_rank(comm, rank) =
    ccall(entries[12], Int32, (Ptr{mdp_comm}, Int32), comm, rank)
mdp_comm_error_info(comm, out) =
    ccall(entries[13], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_error_info}), comm, out)
mdp_comm_event_fd(comm, out) =
    ccall(entries[14], mdp_status, (Ptr{mdp_comm}, Ptr{Int32}), comm, out)
mdp_comm_abort(comm) =
    ccall(entries[15], mdp_status, (Ptr{mdp_comm},), comm)
mdp_comm_destroy(comm) =
    ccall(entries[16], Cvoid, (Ptr{mdp_comm},), comm)
mdp_all_reduce(comm, from, to, op, stream, out) =
    @waiting(entries[17], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, mdp_op, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, op, stream, out)
mdp_reduce_scatter(comm, from, to, op, stream, out) =
    @waiting(entries[18], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, mdp_op, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, op, stream, out)
mdp_all_gather(comm, from, to, stream, out) =
    @waiting(entries[19], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, stream, out)
mdp_all_to_all(comm, from, to, stream, out) =
    @waiting(entries[20], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, stream, out)
mdp_broadcast(comm, tensor, root, stream, out) =
    @waiting(entries[21], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Int32, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, tensor, root, stream, out)
mdp_barrier(comm, out) =
    @waiting(entries[22], mdp_status, (Ptr{mdp_comm}, Ptr{Ptr{mdp_request}}), comm, out)
mdp_reduce_scatter_v(comm, from, to, counts, op, stream, out) =
    @waiting(entries[23], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{UInt64}, mdp_op, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, counts, op, stream, out)
mdp_all_gather_v(comm, from, to, counts, stream, out) =
    @waiting(entries[24], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{mdp_tensor}, Ptr{UInt64}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to, counts, stream, out)
mdp_all_to_all_v(comm, from, from_counts, to, to_counts, stream, out) =
    @waiting(entries[25], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Ptr{UInt64}, Ptr{mdp_tensor}, Ptr{UInt64}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, from_counts, to, to_counts, stream, out)
mdp_send(comm, from, rank, stream, out) =
    @waiting(entries[26], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Int32, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, rank, stream, out)
mdp_recv(comm, to, rank, stream, out) =
    @waiting(entries[27], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Int32, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, to, rank, stream, out)
mdp_send_recv(comm, from, to_rank, to, from_rank, stream, out) =
    @waiting(entries[28], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_tensor}, Int32, Ptr{mdp_tensor}, Int32, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), comm, from, to_rank, to, from_rank, stream, out)
mdp_grid_create(world, config, out) =
    @waiting(entries[29], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_grid_config}, Ptr{Ptr{mdp_grid}}), world, config, out)
mdp_grid_coords(grid, axes, index, size) =
    ccall(entries[30], mdp_status, (Ptr{mdp_grid}, UInt32, Ptr{Int32}, Ptr{Int32}), grid, axes, index, size)
mdp_grid_comm(grid, axes, out) =
    @waiting(entries[31], mdp_status, (Ptr{mdp_grid}, UInt32, Ptr{Ptr{mdp_comm}}), grid, axes, out)
mdp_grid_destroy(grid) =
    ccall(entries[32], Cvoid, (Ptr{mdp_grid},), grid)
mdp_grid_groups_json(grid, size, axes, json, capacity, needed) =
    ccall(entries[33], mdp_status, (Ptr{mdp_grid_config}, Int32, UInt32, Ptr{UInt8}, Csize_t, Ptr{Csize_t}), grid, size, axes, json, capacity, needed)
mdp_plan(grid, size, rank, config, params, count, out) =
    ccall(entries[34], mdp_status, (Ptr{mdp_grid_config}, Int32, Int32, Ptr{mdp_buffer_config}, Ptr{mdp_param}, Csize_t, Ptr{mdp_plan_report}), grid, size, rank, config, params, count, out)
mdp_plan_json(grid, size, config, params, count, json, capacity, needed) =
    ccall(entries[35], mdp_status, (Ptr{mdp_grid_config}, Int32, Ptr{mdp_buffer_config}, Ptr{mdp_param}, Csize_t, Ptr{UInt8}, Csize_t, Ptr{Csize_t}), grid, size, config, params, count, json, capacity, needed)
mdp_buffer_register(comm, grid, config, params, count, out) =
    @waiting(entries[36], mdp_status, (Ptr{mdp_comm}, Ptr{mdp_grid}, Ptr{mdp_buffer_config}, Ptr{mdp_param}, Csize_t, Ptr{Ptr{mdp_buffer}}), comm, grid, config, params, count, out)
mdp_buffer_owned(buffer, ranges, capacity, needed) =
    ccall(entries[37], mdp_status, (Ptr{mdp_buffer}, Ptr{mdp_range}, Csize_t, Ptr{Csize_t}), buffer, ranges, capacity, needed)
mdp_buffer_find(buffer, name, param) =
    ccall(entries[38], mdp_status, (Ptr{mdp_buffer}, Cstring, Ptr{Csize_t}), buffer, name, param)
mdp_buffer_counts(buffer, params, buckets) =
    ccall(entries[39], mdp_status, (Ptr{mdp_buffer}, Ptr{Csize_t}, Ptr{Csize_t}), buffer, params, buckets)
mdp_buffer_param_view(buffer, param, out) =
    ccall(entries[40], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}), buffer, param, out)
mdp_buffer_grad_view(buffer, param, out) =
    ccall(entries[41], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}), buffer, param, out)
mdp_buffer_to_dlpack(owner, view, out) =
    ccall(entries[42], mdp_status, (Ptr{mdp_buffer}, Ptr{mdp_tensor}, Ptr{Ptr{DLManagedTensorVersioned}}), owner, view, out)
mdp_buffer_broadcast(buffer, root, out) =
    @waiting(entries[43], mdp_status, (Ptr{mdp_buffer}, Int32, Ptr{Ptr{mdp_request}}), buffer, root, out)
mdp_buffer_verify(buffer) =
    @waiting(entries[44], mdp_status, (Ptr{mdp_buffer},), buffer)
mdp_buffer_zero_grad(buffer, stream) =
    ccall(entries[45], mdp_status, (Ptr{mdp_buffer}, Ptr{Cvoid}), buffer, stream)
mdp_buffer_stats(buffer, out) =
    ccall(entries[46], mdp_status, (Ptr{mdp_buffer}, Ptr{mdp_stats_report}), buffer, out)
mdp_buffer_bucket(buffer, bucket, out) =
    ccall(entries[47], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_bucket_report}), buffer, bucket, out)
mdp_buffer_destroy(buffer) =
    ccall(entries[48], Cvoid, (Ptr{mdp_buffer},), buffer)
mdp_microbatch_begin(buffer, is_last) =
    ccall(entries[49], mdp_status, (Ptr{mdp_buffer}, Int32), buffer, is_last)
mdp_param_wait(buffer, param, consumer) =
    @waiting(entries[50], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{Cvoid}), buffer, param, consumer)
mdp_param_read(buffer, param, to, stream) =
    @waiting(entries[51], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}, Ptr{Cvoid}), buffer, param, to, stream)
mdp_param_write(buffer, param, from, stream) =
    @waiting(entries[52], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}, Ptr{Cvoid}), buffer, param, from, stream)
mdp_param_changed(buffer) =
    ccall(entries[53], mdp_status, (Ptr{mdp_buffer},), buffer)
mdp_grad_put(buffer, param, grad, flags, producer) =
    @waiting(entries[54], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{mdp_tensor}, UInt64, Ptr{Cvoid}), buffer, param, grad, flags, producer)
mdp_grad_ready(buffer, param, producer) =
    ccall(entries[55], mdp_status, (Ptr{mdp_buffer}, Csize_t, Ptr{Cvoid}), buffer, param, producer)
mdp_grad_skip(buffer, param) =
    ccall(entries[56], mdp_status, (Ptr{mdp_buffer}, Csize_t), buffer, param)
mdp_grad_sync(buffer, consumer, out) =
    @waiting(entries[57], mdp_status, (Ptr{mdp_buffer}, Ptr{Cvoid}, Ptr{Ptr{mdp_request}}), buffer, consumer, out)
mdp_grad_norm(buffer, params, count, norm) =
    ccall(entries[58], mdp_status, (Ptr{mdp_buffer}, Ptr{Csize_t}, Csize_t, Ptr{Cdouble}), buffer, params, count, norm)
mdp_grad_scale(buffer, params, count, factor, stream) =
    ccall(entries[59], mdp_status, (Ptr{mdp_buffer}, Ptr{Csize_t}, Csize_t, Cdouble, Ptr{Cvoid}), buffer, params, count, factor, stream)
mdp_grad_changed(buffer, producer) =
    ccall(entries[60], mdp_status, (Ptr{mdp_buffer}, Ptr{Cvoid}), buffer, producer)
mdp_optimizer_create(buffer, config, out) =
    @waiting(entries[61], mdp_status, (Ptr{mdp_buffer}, Ptr{mdp_optimizer_config}, Ptr{Ptr{mdp_optimizer}}), buffer, config, out)
mdp_optimizer_set_param_group(optimizer, group, value) =
    ccall(entries[62], mdp_status, (Ptr{mdp_optimizer}, Csize_t, Ptr{mdp_param_group}), optimizer, group, value)
mdp_optimizer_step(optimizer, config, report, out) =
    @waiting(entries[63], mdp_status, (Ptr{mdp_optimizer}, Ptr{mdp_step_config}, Ptr{mdp_step_report}, Ptr{Ptr{mdp_request}}), optimizer, config, report, out)
mdp_optimizer_state(optimizer, param, name, out) =
    @waiting(entries[64], mdp_status, (Ptr{mdp_optimizer}, Csize_t, Cstring, Ptr{mdp_tensor}), optimizer, param, name, out)
mdp_optimizer_steps(optimizer, param, steps) =
    ccall(entries[65], mdp_status, (Ptr{mdp_optimizer}, Csize_t, Ptr{UInt64}), optimizer, param, steps)
mdp_optimizer_destroy(optimizer) =
    ccall(entries[66], Cvoid, (Ptr{mdp_optimizer},), optimizer)
mdp_request_test(request) =
    ccall(entries[67], mdp_status, (Ptr{mdp_request},), request)
mdp_request_wait(request, timeout_ns) =
    @waiting(entries[68], mdp_status, (Ptr{mdp_request}, UInt64), request, timeout_ns)
mdp_request_free(request) =
    ccall(entries[69], Cvoid, (Ptr{mdp_request},), request)
const entries = Vector{Ptr{Cvoid}}(undef, length(FUNCTIONS))
const loaded_from = Ref("")

"The libraries that `open_library` tries: MEGADP_LIBRARY alone where it is set, else the loader's, else that of a build in this tree."
function candidates()
    chosen = get(ENV, "MEGADP_LIBRARY", "")
    isempty(chosen) || return [chosen]
    return ["libmegadp.so.0", normpath(joinpath(@__DIR__, "..", "..", "..", "build", "lib", "libmegadp.so"))]
end

function open_library()
    problems = String[]
    for path in candidates()
        try
            # Not Julia's RTLD_DEEPBIND: the UCX that the library loads replaces functions of libc.
            handle = Libdl.dlopen(path, Libdl.RTLD_NOW | Libdl.RTLD_LOCAL)
            loaded_from[] = Libdl.dlpath(handle)
            return handle
        catch problem
            push!(problems, sprint(showerror, problem))
        end
    end
    error("MegaDP finds no libmegadp; MEGADP_LIBRARY may say where it is. Tried: ", join(problems, "; "))
end

function __init__()
    handle = open_library()
    for (i, name) in enumerate(FUNCTIONS)
        entry = Libdl.dlsym(handle, name; throw_error = false)
        entry === nothing && error("MegaDP: $(loaded_from[]) has no $name: it is older than this package")
        entries[i] = entry
    end
end

end
