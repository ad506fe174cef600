# SPDX-License-Identifier: Apache-2.0
# Written by bindings/generate.py from include/megadp.h; not to be edited.

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
const mdp_scaling = UInt32
const mdp_rule = UInt32
const mdp_norm = UInt32
const mdp_missing = UInt32
const mdp_random = UInt32
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
    host_threads::Int32
    timeout_ns::UInt64
    flags::UInt64
    bootstrap::Ptr{mdp_bootstrap}
    interrupted::Ptr{Cvoid}
    interrupted_context::Ptr{Cvoid}
end
mdp_comm_config(; backend = 0, rank = 0, size = 0, device = 0, host_threads = 0, timeout_ns = 0, flags = 0, bootstrap = C_NULL, interrupted = C_NULL, interrupted_context = C_NULL) =
    mdp_comm_config(sizeof(mdp_comm_config), backend, rank, size, device, host_threads, timeout_ns, flags, bootstrap, interrupted, interrupted_context)

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
    use_order::Int32
    flags::UInt64
    tie::Ptr{UInt8}
    sharding::mdp_sharding
    reserved::UInt32
    cost::Cdouble
end
mdp_param(; dtype = 0, name = C_NULL, shape = C_NULL, ndim = 0, uses_per_step = 0, param_class = 0, placement = 0, shard_dim = 0, shard_stride = 0, param_group = 0, use_order = 0, flags = 0, tie = C_NULL, sharding = 0, reserved = 0, cost = 0) =
    mdp_param(sizeof(mdp_param), dtype, name, shape, ndim, uses_per_step, param_class, placement, shard_dim, shard_stride, param_group, use_order, flags, tie, sharding, reserved, cost)

struct mdp_buffer_config
    struct_size::UInt32
    grad_dtype::mdp_dtype
    sharding::mdp_sharding
    missing::mdp_missing
    bucket_elements::UInt64
    bucket_count::UInt64
    flags::UInt64
    pool_buckets::UInt64
    spill_limit::UInt64
    scaling::mdp_scaling
    wire_dtype::mdp_dtype
end
mdp_buffer_config(; grad_dtype = 0, sharding = 0, missing = 0, bucket_elements = 0, bucket_count = 0, flags = 0, pool_buckets = 0, spill_limit = 0, scaling = 0, wire_dtype = 0) =
    mdp_buffer_config(sizeof(mdp_buffer_config), grad_dtype, sharding, missing, bucket_elements, bucket_count, flags, pool_buckets, spill_limit, scaling, wire_dtype)

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
    spill_bytes::UInt64
    feedback_bytes::UInt64
    average_bytes::UInt64
end
mdp_plan_report(; reserved = 0, param_bytes = 0, grad_bytes = 0, grad_shard_bytes = 0, master_bytes = 0, state_bytes = 0, scratch_bytes = 0, padding_elements = 0, buckets = 0, owned_elements = 0, communicator_bytes = 0, spill_bytes = 0, feedback_bytes = 0, average_bytes = 0) =
    mdp_plan_report(sizeof(mdp_plan_report), reserved, param_bytes, grad_bytes, grad_shard_bytes, master_bytes, state_bytes, scratch_bytes, padding_elements, buckets, owned_elements, communicator_bytes, spill_bytes, feedback_bytes, average_bytes)

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
    beta1::Cdouble
    beta2::Cdouble
    momentum::Cdouble
    eps::Cdouble
end
mdp_param_group(; reserved = 0, lr = 0, weight_decay = 0, flags = 0, beta1 = 0, beta2 = 0, momentum = 0, eps = 0) =
    mdp_param_group(sizeof(mdp_param_group), reserved, lr, weight_decay, flags, beta1, beta2, momentum, eps)

struct mdp_param_state
    struct_size::UInt32
    reserved::UInt32
    name::Ptr{UInt8}
    bytes::Ptr{UInt64}
end
mdp_param_state(; reserved = 0, name = C_NULL, bytes = C_NULL) =
    mdp_param_state(sizeof(mdp_param_state), reserved, name, bytes)

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
    max_grad_value::Cdouble
    norm::mdp_norm
    first_param_group::UInt32
    momentum::Cdouble
    state::Ptr{UInt8}
    param_states::Ptr{mdp_param_state}
    param_state_count::UInt64
    average_decay::Cdouble
    state_dtype::mdp_dtype
    reserved::UInt32
    seed::UInt64
end
mdp_optimizer_config(; rule = 0, lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, max_grad_norm = 0, param_groups = C_NULL, param_group_count = 0, flags = 0, max_grad_value = 0, norm = 0, first_param_group = 0, momentum = 0, state = C_NULL, param_states = C_NULL, param_state_count = 0, average_decay = 0, state_dtype = 0, reserved = 0, seed = 0) =
    mdp_optimizer_config(sizeof(mdp_optimizer_config), rule, lr, beta1, beta2, eps, weight_decay, max_grad_norm, param_groups, param_group_count, flags, max_grad_value, norm, first_param_group, momentum, state, param_states, param_state_count, average_decay, state_dtype, reserved, seed)

struct mdp_update
    struct_size::UInt32
    optimizer::UInt32
    param::UInt64
    param_begin::UInt64
    count::UInt64
    master::Ptr{Cfloat}
    grad::Ptr{Cfloat}
    state::Ptr{Ptr{Cfloat}}
    state_count::UInt64
    step::UInt64
    lr::Cdouble
    beta1::Cdouble
    beta2::Cdouble
    eps::Cdouble
    weight_decay::Cdouble
    momentum::Cdouble
    stream::Ptr{Cvoid}
    param_states::Ptr{Ptr{Cvoid}}
    param_state_bytes::Ptr{UInt64}
    param_state_count::UInt64
end
mdp_update(; optimizer = 0, param = 0, param_begin = 0, count = 0, master = C_NULL, grad = C_NULL, state = C_NULL, state_count = 0, step = 0, lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0, momentum = 0, stream = C_NULL, param_states = C_NULL, param_state_bytes = C_NULL, param_state_count = 0) =
    mdp_update(sizeof(mdp_update), optimizer, param, param_begin, count, master, grad, state, state_count, step, lr, beta1, beta2, eps, weight_decay, momentum, stream, param_states, param_state_bytes, param_state_count)

struct mdp_scaler
    struct_size::UInt32
    growth_interval::UInt32
    hysteresis::UInt32
    clean_steps::UInt32
    overflows::UInt32
    reserved::UInt32
    scale::Cdouble
    growth_factor::Cdouble
    backoff_factor::Cdouble
    min_scale::Cdouble
    flags::UInt64
end
mdp_scaler(; growth_interval = 0, hysteresis = 0, clean_steps = 0, overflows = 0, reserved = 0, scale = 0, growth_factor = 0, backoff_factor = 0, min_scale = 0, flags = 0) =
    mdp_scaler(sizeof(mdp_scaler), growth_interval, hysteresis, clean_steps, overflows, reserved, scale, growth_factor, backoff_factor, min_scale, flags)

struct mdp_step_config
    struct_size::UInt32
    reserved::UInt32
    lr::Cdouble
    loss_scale::Cdouble
    stream::Ptr{Cvoid}
    flags::UInt64
    grad_divisor::Cdouble
end
mdp_step_config(; reserved = 0, lr = 0, loss_scale = 0, stream = C_NULL, flags = 0, grad_divisor = 0) =
    mdp_step_config(sizeof(mdp_step_config), reserved, lr, loss_scale, stream, flags, grad_divisor)

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

struct mdp_grad_summary
    struct_size::UInt32
    reserved::UInt32
    norm::Cdouble
    inf_norm::Cdouble
    zeros::UInt64
    nonfinite::UInt64
end
mdp_grad_summary(; reserved = 0, norm = 0, inf_norm = 0, zeros = 0, nonfinite = 0) =
    mdp_grad_summary(sizeof(mdp_grad_summary), reserved, norm, inf_norm, zeros, nonfinite)

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
    spill_peak_bytes::UInt64
    large_gradients::UInt64
end
mdp_stats_report(; reserved = 0, comm_ns = 0, exposed_ns = 0, bytes = 0, buckets = 0, launched_in_backward = 0, syncs = 0, host_syncs = 0, spill_peak_bytes = 0, large_gradients = 0) =
    mdp_stats_report(sizeof(mdp_stats_report), reserved, comm_ns, exposed_ns, bytes, buckets, launched_in_backward, syncs, host_syncs, spill_peak_bytes, large_gradients)

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

struct mdp_checkpoint_part
    struct_size::UInt32
    reserved::UInt32
    buffer::Ptr{mdp_buffer}
    optimizer::Ptr{mdp_optimizer}
end
mdp_checkpoint_part(; reserved = 0, buffer = C_NULL, optimizer = C_NULL) =
    mdp_checkpoint_part(sizeof(mdp_checkpoint_part), reserved, buffer, optimizer)

struct mdp_checkpoint_tensor
    struct_size::UInt32
    placement::mdp_placement
    name::Ptr{UInt8}
    tensor::Ptr{mdp_tensor}
    shard_dim::Int32
    shard_stride::Int32
end
mdp_checkpoint_tensor(; placement = 0, name = C_NULL, tensor = C_NULL, shard_dim = 0, shard_stride = 0) =
    mdp_checkpoint_tensor(sizeof(mdp_checkpoint_tensor), placement, name, tensor, shard_dim, shard_stride)

struct mdp_checkpoint_config
    struct_size::UInt32
    reserved::UInt32
    directory::Ptr{UInt8}
    parts::Ptr{mdp_checkpoint_part}
    part_count::UInt64
    tensors::Ptr{mdp_checkpoint_tensor}
    tensor_count::UInt64
    shared_data::Ptr{Cvoid}
    shared_bytes::UInt64
    rank_data::Ptr{Cvoid}
    rank_bytes::UInt64
    keep::UInt64
    optional::Ptr{UInt8}
    flags::UInt64
end
mdp_checkpoint_config(; reserved = 0, directory = C_NULL, parts = C_NULL, part_count = 0, tensors = C_NULL, tensor_count = 0, shared_data = C_NULL, shared_bytes = 0, rank_data = C_NULL, rank_bytes = 0, keep = 0, optional = C_NULL, flags = 0) =
    mdp_checkpoint_config(sizeof(mdp_checkpoint_config), reserved, directory, parts, part_count, tensors, tensor_count, shared_data, shared_bytes, rank_data, rank_bytes, keep, optional, flags)

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
const MDP_COMM_THREADS_ALWAYS = Int(8)

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
const MDP_PLACEMENT_PARTIAL_SUM = UInt32(3)
const MDP_PLACEMENT_PARTIAL_MEAN = UInt32(4)

const MDP_SHARDING_DEFAULT = UInt32(0)
const MDP_SHARDING_ZERO_0 = UInt32(1)
const MDP_SHARDING_ZERO_1 = UInt32(2)
const MDP_SHARDING_ZERO_2 = UInt32(3)
const MDP_SHARDING_WHOLE = UInt32(4)

const MDP_SCALING_MEAN = UInt32(0)
const MDP_SCALING_SUM = UInt32(1)
const MDP_SCALING_TOKENS = UInt32(2)

const MDP_RULE_ADAMW = UInt32(0)
const MDP_RULE_ADAM = UInt32(1)
const MDP_RULE_SGD = UInt32(2)
const MDP_RULE_SGD_MOMENTUM = UInt32(3)
const MDP_RULE_SGD_NESTEROV = UInt32(4)
const MDP_RULE_LION = UInt32(5)
const MDP_RULE_CALLER = UInt32(6)

const MDP_NORM_L2 = UInt32(0)
const MDP_NORM_INF = UInt32(1)

const MDP_MISSING_ERROR = UInt32(0)
const MDP_MISSING_ZERO = UInt32(1)
const MDP_MISSING_SKIP = UInt32(2)

const MDP_PARAM_FROZEN = Int(1)
const MDP_PARAM_OWN_BUCKET = Int(2)

const MDP_BUFFER_NO_OVERLAP = Int(1)
const MDP_BUFFER_HIGH_BANDWIDTH_PADDING = Int(2)
const MDP_BUFFER_REFERENCE_BUCKETS = Int(4)
const MDP_BUFFER_IGNORE_MEMORY = Int(8)
const MDP_BUFFER_ERROR_FEEDBACK = Int(16)
const MDP_BUFFER_CHECK_FINITE = Int(32)
const MDP_BUFFER_CHECK_LARGE = Int(64)

const MDP_GRAD_ADD = Int(1)
const MDP_GRAD_MORE = Int(2)

const MDP_PARAM_GROUP_SET_LR = Int(1)
const MDP_PARAM_GROUP_SET_WEIGHT_DECAY = Int(2)
const MDP_PARAM_GROUP_SET_BETA1 = Int(4)
const MDP_PARAM_GROUP_SET_BETA2 = Int(8)
const MDP_PARAM_GROUP_SET_MOMENTUM = Int(16)

const MDP_OPTIMIZER_SET_LR = Int(1)
const MDP_OPTIMIZER_SET_BETA1 = Int(2)
const MDP_OPTIMIZER_SET_BETA2 = Int(4)
const MDP_OPTIMIZER_SET_MOMENTUM = Int(8)
const MDP_OPTIMIZER_SOME_GROUPS = Int(16)
const MDP_OPTIMIZER_NO_MASTER = Int(32)
const MDP_OPTIMIZER_STOCHASTIC_STATE = Int(64)
const MDP_OPTIMIZER_CHECK_UPDATE = Int(128)

const MDP_SCALER_CONSTANT = Int(1)

const MDP_STEP_SET_LR = Int(1)
const MDP_STEP_UNCHECKED = Int(2)

const MDP_STEPPED_SKIPPED = Int(1)
const MDP_STEPPED_CLIPPED = Int(2)
const MDP_STEPPED_UNCHECKED = Int(4)

const MDP_RANDOM_UNSET = UInt32(0)
const MDP_RANDOM_REPLICATED = UInt32(1)
const MDP_RANDOM_TENSOR = UInt32(2)
const MDP_RANDOM_EXPERT = UInt32(3)

const MDP_CHECKPOINT_PARAMS_ONLY = Int(1)
const MDP_CHECKPOINT_LOAD_HYPER = Int(2)

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
