# SPDX-License-Identifier: Apache-2.0
# Written by bindings/generate.py from include/megadp_layers.h; not to be edited.

mutable struct mdp_tp_linear end
mutable struct mdp_tp_saved end
mutable struct mdp_halo end

const mdp_tp_region = UInt32
const mdp_tp_grad = UInt32
const mdp_tp_split = UInt32
const mdp_edge = UInt32
const mdp_cp_form = UInt32
const mdp_cp_mask = UInt32

struct mdp_tp_region_config
    struct_size::UInt32
    region::mdp_tp_region
    grad::mdp_tp_grad
    dim::Int32
    to_dim::Int32
    reserved::UInt32
    parts::Ptr{UInt64}
    to_parts::Ptr{UInt64}
    flags::UInt64
end
mdp_tp_region_config(; region = 0, grad = 0, dim = 0, to_dim = 0, reserved = 0, parts = C_NULL, to_parts = C_NULL, flags = 0) =
    mdp_tp_region_config(sizeof(mdp_tp_region_config), region, grad, dim, to_dim, reserved, parts, to_parts, flags)

struct mdp_tp_linear_config
    struct_size::UInt32
    split::mdp_tp_split
    in_features::Int64
    out_features::Int64
    blocks::Ptr{Int64}
    block_count::UInt64
    buffer::Ptr{mdp_buffer}
    weight::UInt64
    bias::UInt64
    dtype::mdp_dtype
    grad::mdp_tp_grad
    flags::UInt64
end
mdp_tp_linear_config(; split = 0, in_features = 0, out_features = 0, blocks = C_NULL, block_count = 0, buffer = C_NULL, weight = 0, bias = 0, dtype = 0, grad = 0, flags = 0) =
    mdp_tp_linear_config(sizeof(mdp_tp_linear_config), split, in_features, out_features, blocks, block_count, buffer, weight, bias, dtype, grad, flags)

struct mdp_tp_embedding_config
    struct_size::UInt32
    grad::mdp_tp_grad
    rows::Int64
    flags::UInt64
end
mdp_tp_embedding_config(; grad = 0, rows = 0, flags = 0) =
    mdp_tp_embedding_config(sizeof(mdp_tp_embedding_config), grad, rows, flags)

struct mdp_tp_cross_entropy_config
    struct_size::UInt32
    reserved::UInt32
    classes::Int64
    ignore_index::Int64
    label_smoothing::Cdouble
    z_loss::Cdouble
    flags::UInt64
end
mdp_tp_cross_entropy_config(; reserved = 0, classes = 0, ignore_index = 0, label_smoothing = 0, z_loss = 0, flags = 0) =
    mdp_tp_cross_entropy_config(sizeof(mdp_tp_cross_entropy_config), reserved, classes, ignore_index, label_smoothing, z_loss, flags)

struct mdp_halo_config
    struct_size::UInt32
    dtype::mdp_dtype
    ndim::Int32
    fields::UInt32
    grid::Ptr{Int64}
    shape::Ptr{Int64}
    low::Ptr{Int64}
    high::Ptr{Int64}
    edges::Ptr{mdp_edge}
    flags::UInt64
    arrays::UInt64
    staggered::Ptr{Int64}
end
mdp_halo_config(; dtype = 0, ndim = 0, fields = 0, grid = C_NULL, shape = C_NULL, low = C_NULL, high = C_NULL, edges = C_NULL, flags = 0, arrays = 0, staggered = C_NULL) =
    mdp_halo_config(sizeof(mdp_halo_config), dtype, ndim, fields, grid, shape, low, high, edges, flags, arrays, staggered)

struct mdp_conv_config
    struct_size::UInt32
    reserved::UInt32
    kernel::Int64
    stride::Int64
    dilation::Int64
    padding_low::Int64
    padding_high::Int64
end
mdp_conv_config(; reserved = 0, kernel = 0, stride = 0, dilation = 0, padding_low = 0, padding_high = 0) =
    mdp_conv_config(sizeof(mdp_conv_config), reserved, kernel, stride, dilation, padding_low, padding_high)

struct mdp_conv_part
    struct_size::UInt32
    reserved::UInt32
    low::Int64
    high::Int64
    output_begin::Int64
    output_size::Int64
    first::Int64
    inside_begin::Int64
    inside_size::Int64
    whole_output::Int64
end
mdp_conv_part(; reserved = 0, low = 0, high = 0, output_begin = 0, output_size = 0, first = 0, inside_begin = 0, inside_size = 0, whole_output = 0) =
    mdp_conv_part(sizeof(mdp_conv_part), reserved, low, high, output_begin, output_size, first, inside_begin, inside_size, whole_output)

struct mdp_cp_config
    struct_size::UInt32
    form::mdp_cp_form
    bounds::Ptr{Int64}
    bound_count::UInt64
    flags::UInt64
end
mdp_cp_config(; form = 0, bounds = C_NULL, bound_count = 0, flags = 0) =
    mdp_cp_config(sizeof(mdp_cp_config), form, bounds, bound_count, flags)

struct mdp_cp_block
    struct_size::UInt32
    mask::mdp_cp_mask
    q_begin::Int64
    k_begin::Int64
    head_begin::Int64
    q::Ptr{mdp_tensor}
    k::Ptr{mdp_tensor}
    v::Ptr{mdp_tensor}
    out::Ptr{mdp_tensor}
    lse::Ptr{mdp_tensor}
    grad_out::Ptr{mdp_tensor}
    grad_q::Ptr{mdp_tensor}
    grad_k::Ptr{mdp_tensor}
    grad_v::Ptr{mdp_tensor}
    q_bounds::Ptr{Int64}
    k_bounds::Ptr{Int64}
    bound_count::UInt64
    stream::Ptr{Cvoid}
end
mdp_cp_block(; mask = 0, q_begin = 0, k_begin = 0, head_begin = 0, q = C_NULL, k = C_NULL, v = C_NULL, out = C_NULL, lse = C_NULL, grad_out = C_NULL, grad_q = C_NULL, grad_k = C_NULL, grad_v = C_NULL, q_bounds = C_NULL, k_bounds = C_NULL, bound_count = 0, stream = C_NULL) =
    mdp_cp_block(sizeof(mdp_cp_block), mask, q_begin, k_begin, head_begin, q, k, v, out, lse, grad_out, grad_q, grad_k, grad_v, q_bounds, k_bounds, bound_count, stream)

const MDP_TP_REGION_UNSET = UInt32(0)
const MDP_TP_COPY = UInt32(1)
const MDP_TP_REDUCE = UInt32(2)
const MDP_TP_SCATTER = UInt32(3)
const MDP_TP_GATHER = UInt32(4)
const MDP_TP_REDUCE_SCATTER = UInt32(5)
const MDP_TP_EXCHANGE = UInt32(6)

const MDP_TP_GRAD_UNSET = UInt32(0)
const MDP_TP_GRAD_PARTIAL = UInt32(1)
const MDP_TP_GRAD_REPLICATED = UInt32(2)

const MDP_TP_SPLIT_UNSET = UInt32(0)
const MDP_TP_COLUMN = UInt32(1)
const MDP_TP_ROW = UInt32(2)

const MDP_TP_LINEAR_BIAS = Int(1)
const MDP_TP_LINEAR_TRANSPOSED = Int(2)
const MDP_TP_LINEAR_SEQUENCE = Int(4)
const MDP_TP_LINEAR_GATHER_OUTPUT = Int(8)
const MDP_TP_LINEAR_WHOLE_INPUT = Int(16)
const MDP_TP_LINEAR_CHECK_REPLICATED = Int(32)

const MDP_TP_REGION_CHECK_REPLICATED = Int(1)

const MDP_TP_EMBEDDING_SEQUENCE = Int(1)
const MDP_TP_EMBEDDING_CHECK_REPLICATED = Int(2)

const MDP_TP_CROSS_ENTROPY_IGNORE = Int(1)
const MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED = Int(2)

const MDP_EDGE_KEEP = UInt32(0)
const MDP_EDGE_ZERO = UInt32(1)
const MDP_EDGE_PERIODIC = UInt32(2)
const MDP_EDGE_REFLECT = UInt32(3)

const MDP_HALO_FACES = Int(1)

const MDP_HALO_BACKWARD = Int(1)

const MDP_CP_AUTO = UInt32(0)
const MDP_CP_RING = UInt32(1)
const MDP_CP_ALL_TO_ALL = UInt32(2)

const MDP_CP_MASK_NONE = UInt32(0)
const MDP_CP_MASK_CAUSAL = UInt32(1)

const MDP_CP_CAUSAL = Int(1)
