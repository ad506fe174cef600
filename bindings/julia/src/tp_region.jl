# SPDX-License-Identifier: Apache-2.0
# The operators between what is replicated and what is cut over tensor-parallel ranks, along any dimension.

const TP_REGIONS = Dict(:copy => Raw.MDP_TP_COPY, :reduce => Raw.MDP_TP_REDUCE, :scatter => Raw.MDP_TP_SCATTER,
                        :gather => Raw.MDP_TP_GATHER, :reduce_scatter => Raw.MDP_TP_REDUCE_SCATTER, :exchange => Raw.MDP_TP_EXCHANGE)
const TP_GRADS = Dict(:unset => Raw.MDP_TP_GRAD_UNSET, :partial => Raw.MDP_TP_GRAD_PARTIAL, :replicated => Raw.MDP_TP_GRAD_REPLICATED)

"""
    TpRegion(comm, region; grad = :unset, dim = nothing, to_dim = nothing, parts = nothing, to_parts = nothing, check_replicated = false)
    region(x)

An operator on arrays over the ranks of `comm`, with its gradient for ADs that go by ChainRules. `region` is

- `:copy`: replicated, the same on; `:reduce`: the sum over the ranks, on all of them;
- `:scatter`: of what is replicated this rank's part along `dim`; `:gather`: all parts together;
- `:reduce_scatter`: this rank's part of the sum over the ranks;
- `:exchange`: cut along `dim` becomes cut along `to_dim`, such as sequence and heads.

`grad` says what comes back of what `:copy`, `:reduce` and `:gather` give: `:partial` (each rank's is a part, they are summed) or `:replicated` (the
same on all). `dim` and `to_dim` count from 1; `parts` and `to_parts` are the sizes of the ranks' parts along them, equal ones unless
given. `check_replicated` compares over the ranks what should be the same, for debugging. Arrays have any strides.

Collective over `comm`, in the order of its other collectives; blocking. Throws `MegaDPError`: `:INVALID` (sizes that do not divide),
`:DESYNC`, and those of a lost communicator. [`MegaDP.forward!`](@ref) and [`MegaDP.backward!`](@ref) write into arrays that are there.
"""
struct TpRegion
    comm::Comm
    region::Symbol
    grad::Symbol
    dim::Union{Int,Nothing}
    to_dim::Union{Int,Nothing}
    parts::Vector{UInt64}  # empty: equal ones
    to_parts::Vector{UInt64}
    check_replicated::Bool
end

function TpRegion(comm::Comm, region::Symbol; grad = :unset, dim = nothing, to_dim = nothing, parts = nothing, to_parts = nothing,
                  check_replicated = false)
    choose(TP_REGIONS, "region", region)
    choose(TP_GRADS, "grad", grad)
    dim === nothing && !(region in (:copy, :reduce)) && throw(invalid("dim is not given; :$region cuts along one, counted from 1"))
    to_dim === nothing && region == :exchange && throw(invalid("to_dim is not given; :exchange cuts along one, counted from 1"))
    list(sizes, argument) = sizes === nothing ? UInt64[] : counts_of(comm, sizes, argument)
    return TpRegion(comm, region, grad, dim, to_dim, list(parts, "parts"), list(to_parts, "to_parts"), check_replicated)
end

Base.show(io::IO, region::TpRegion) = print(io, "TpRegion(:", region.region, ")")

"A dimension in the library's order, in which the last is the first."
function flipped(dim, n, argument)
    dim === nothing && return 0
    1 <= dim <= n || throw(invalid("$argument is $dim; the array has $n dimensions, counted from 1"))
    return n - dim
end

"The configuration for arrays of `n` dimensions. It points to the region's lists."
raw_region(region::TpRegion, n) =
    Raw.mdp_tp_region_config(; region = choose(TP_REGIONS, "region", region.region), grad = choose(TP_GRADS, "grad", region.grad),
                             dim = flipped(region.dim, n, "dim"), to_dim = flipped(region.to_dim, n, "to_dim"),
                             parts = isempty(region.parts) ? C_NULL : pointer(region.parts),
                             to_parts = isempty(region.to_parts) ? C_NULL : pointer(region.to_parts),
                             flags = region.check_replicated ? Raw.MDP_TP_REGION_CHECK_REPLICATED : 0)

"The size of what `region(x)` gives. Sizes that do not divide are the library's to refuse."
function output_size(region::TpRegion, x)
    sizes, ranks, rank = collect(size(x)), total_workers(region.comm), local_rank(region.comm)
    raw_region(region, length(sizes))  # throws where there is no such dimension
    part!(dim, parts) = sizes[dim] = isempty(parts) ? sizes[dim] ÷ ranks : parts[rank + 1]
    whole!(dim, parts) = sizes[dim] = isempty(parts) ? sizes[dim] * ranks : sum(parts)
    region.region in (:scatter, :reduce_scatter) && part!(region.dim, region.parts)
    region.region in (:gather, :exchange) && whole!(region.dim, region.parts)
    region.region == :exchange && part!(region.to_dim, region.to_parts)
    return Tuple(sizes)
end

"An array to write, of the same elements and in the same memory; but what is similar to an array without strides may have none either."
function fresh(like::AbstractArray, sizes = size(like))
    made = similar(like, sizes)
    return strided(made) === nothing ? Array{eltype(like)}(undef, sizes) : made
end

"The array itself, or a copy where it has no strides."
lying(array::AbstractArray) = strided(array) === nothing ? copyto!(fresh(array), array) : array

"`borrow` of what may be left out."
borrow_or_null(::Nothing, row_major) = C_NULL
borrow_or_null(array, row_major) = borrow(lying(array), row_major)

function run_region(call, region, from, to)
    source, target = borrow(lying(from), false), borrow_written(to, "the array that is written")
    GC.@preserve region check(call(region.comm, Ref(raw_region(region, ndims(from))), source, target, stream_of(to)))
    return to
end

"""
    MegaDP.forward!(region, y, x) -> y
    MegaDP.forward!(layer, y, x, weight = nothing, bias = nothing) -> y
    MegaDP.forward!(embedding, y, ids, weight) -> y
    MegaDP.forward!(loss, losses, logits, targets; saved = nothing) -> losses
    MegaDP.forward!(attention, out, lse, q, k, v) -> out

`y` becomes `region(x)`, `layer(x, weight, bias)` or `embedding(ids, weight)`; `losses` become `loss(logits, targets)`, and `saved`, `Float32` of (2,
size of targets...), what its backward needs; `out` becomes `attention(q, k, v)`, and `lse`, `Float32` of (heads, positions, batch), what its backward
needs. As these otherwise.
"""
forward!(region::TpRegion, y::AbstractArray, x::AbstractArray) = run_region(Raw.mdp_tp_region_fwd, region, x, y)

"""
    MegaDP.backward!(region, dx, dy) -> dx

`dx` becomes the gradient of what `region` was given, from that of what it gave: of `:copy` and `:reduce` their sum if `:partial`, else the same; of
`:scatter` and `:reduce_scatter` all parts; of `:gather` this rank's part, of their sum if `:partial`; of `:exchange` the inverse. As
`region(x)` otherwise. For ADs that do not go by ChainRules.

    MegaDP.backward!(layer, dy, x; weight = nothing, grad_input = nothing, grad_weight = nothing, grad_bias = nothing, add = false)

The gradients of a [`TpLinear`](@ref), in the arrays that are given; what is `nothing` is not computed, but those of a buffer's parameters always: they
are written where they belong, and counted as ready. `x` is the input of the forward, or `nothing` if the weight needs no gradient. With
`add` those of weight and bias are added to what is there. As `layer(x)` otherwise.

    MegaDP.backward!(embedding, grad_weight, dy, ids; add = false) -> grad_weight
    MegaDP.backward!(loss, grad_logits, grad_losses, logits, targets, saved) -> grad_logits

The gradients of a [`TpEmbedding`](@ref)'s weight, with zeros where no id came, and of a [`TpCrossEntropy`](@ref)'s logits, whose array `grad_logits`
may be; the latter is local.

    MegaDP.backward!(attention, grad_q, grad_k, grad_v, grad_out, q, k, v, out, lse)

The gradients of what a [`CpAttention`](@ref) was given, from that of `out` and what forward has written. As `attention(q, k, v)` otherwise.
"""
backward!(region::TpRegion, dx::AbstractArray, dy::AbstractArray) = run_region(Raw.mdp_tp_region_bwd, region, dy, dx)

(region::TpRegion)(x::AbstractArray) = forward!(region, fresh(x, output_size(region, x)), x)
