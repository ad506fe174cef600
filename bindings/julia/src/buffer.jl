# SPDX-License-Identifier: Apache-2.0
# All parameters and gradients of a model, in memory of the library: laid out, bucketed, sharded.

const CLASSES = Dict(:dense => Raw.MDP_PARAM_CLASS_DENSE, :expert => Raw.MDP_PARAM_CLASS_EXPERT)
const PLACEMENTS = Dict(:unset => Raw.MDP_PLACEMENT_UNSET, :replicated => Raw.MDP_PLACEMENT_REPLICATED,
                        :sharded => Raw.MDP_PLACEMENT_SHARDED, :partial_sum => Raw.MDP_PLACEMENT_PARTIAL_SUM,
                        :partial_mean => Raw.MDP_PLACEMENT_PARTIAL_MEAN)
const SHARDINGS = Dict(:default => Raw.MDP_SHARDING_DEFAULT, :zero0 => Raw.MDP_SHARDING_ZERO_0, :zero1 => Raw.MDP_SHARDING_ZERO_1,
                       :zero2 => Raw.MDP_SHARDING_ZERO_2, :whole => Raw.MDP_SHARDING_WHOLE)
const MISSINGS = Dict(:error => Raw.MDP_MISSING_ERROR, :zero => Raw.MDP_MISSING_ZERO, :skip => Raw.MDP_MISSING_SKIP)
const SCALINGS = Dict(:mean => Raw.MDP_SCALING_MEAN, :sum => Raw.MDP_SCALING_SUM, :tokens => Raw.MDP_SCALING_TOKENS)
const GRAD_DTYPES = Dict(:f32 => Raw.MDP_DTYPE_F32, :same => Raw.MDP_DTYPE_SAME)
const WIRE_DTYPES = Dict(:f32 => Raw.MDP_DTYPE_F32, :bf16 => Raw.MDP_DTYPE_BF16)
const STATES = (:filling, :ready, :in_flight, :reduced, :gathering, :whole)

"""
    Param(name, size; dtype = Float32, uses = 1, class = :dense, placement = :unset, shard_dim = nothing, shard_stride = 1,
          param_group = 1, frozen = false, own_bucket = false, tie = "", use_order = 0, sharding = :default, cost = 0.0)
    Param(name, array; ...)

One parameter for a [`Buffer`](@ref): its unique name, its size in Julia's order, and its element type (Float32, Float16, BFloat16 or
`:bf16`). `uses` is how many puts make its gradient complete in a microbatch; `shard_dim` the dimension (from 1) that tensor-parallel ranks
share, with `placement = :sharded`; `:partial_sum` and `:partial_mean` are `:replicated`, but each has a part of the gradient;
`param_group` the parameter group of the optimizer, from 1. A frozen one has a name and a number only. Copies on several pipeline stages
have the same `tie`: their gradients are added up. Parameters are used in ascending order of `use_order`, which is any number, equal ones as
registered; [`use_order`](@ref) tells it. `sharding` is the buffer's unless it is said: `:whole` in one of `:zero1` or `:zero2`, `:zero1` in one of `:whole`;
with `:whole` owners are balanced by `cost`, that of the update in any unit (0: its elements).
"""
struct Param
    name::String
    size::Tuple{Vararg{Int}}
    dtype::Any
    uses::Int
    class::Symbol
    placement::Symbol
    shard_dim::Union{Int,Nothing}
    shard_stride::Int
    param_group::Int
    frozen::Bool
    own_bucket::Bool
    tie::String
    use_order::Int
    sharding::Symbol
    cost::Float64
end

Param(name, size::Tuple; dtype = Float32, uses = 1, class = :dense, placement = :unset, shard_dim = nothing, shard_stride = 1,
      param_group = 1, frozen = false, own_bucket = false, tie = "", use_order = 0, sharding = :default, cost = 0.0) =
    Param(String(name), size, dtype, uses, class, placement, shard_dim, shard_stride, param_group, frozen, own_bucket, String(tie), use_order,
          sharding, cost)
Param(name, array::AbstractArray; keywords...) = Param(name, size(array); dtype = eltype(array), keywords...)

const Which = Union{Integer,AbstractString}  # a parameter, by its number or its name

"""
    Buffer(comm_or_grid, params; sharding = :zero1, grad_dtype = :f32, missing = :error, bucket_elements = nothing, bucket_count = nothing,
           overlap = true, row_major = false, high_bandwidth_padding = false, reference_buckets = false, ignore_memory = false,
           pool_buckets = nothing, spill_limit = nothing, scaling = :mean, wire_dtype = :f32, error_feedback = false,
           check_finite = false, check_large = false)

Lays out the parameters and their gradients, cuts them into buckets and allocates both, zeroed, in memory that ranks share. `params` are
[`Param`](@ref)s in the order of the forward pass; from here on they are known by their number, from 1, or by their name. The ranks of a
communicator are all data-parallel; a [`Grid`](@ref) says which ones are.

`sharding`: with `:whole` each parameter has one owner, for updates that need all of it; `:zero1` shards the optimizer's state over the ranks, `:zero0` nothing. With `:zero2` gradients are too: they pass through a pool
with room for `pool_buckets` buckets (2 unless said), and a rank keeps the sums of what it owns, in Float32. A gradient that comes before its
bucket's turn lies outside the pool, for which memory is taken up to `spill_limit` bytes (no limit unless said; each rank's own). Gradients
are put, or written where [`acquire_grad`](@ref) says, and each microbatch is sent. `grad_dtype`: `:f32` or `:same`. `missing` says what
the step does about a parameter without a gradient: `:error`, `:zero` (this rank adds zero) or `:skip`. A bucket closes at
`bucket_elements`; or there are `bucket_count`. With `overlap = false` everything is launched at `sync!`. With `ignore_memory`, on any rank,
memory is taken also where the system says that there is too little. The sum of gradients is divided by the number of ranks (`scaling = :mean`), by
nothing (`:sum`), or by the step's tokens (`:tokens`, see [`tokens!`](@ref)).

With `wire_dtype = :bf16` Float32 gradients are sent as bf16, rounded once by each rank, and summed in Float32; with `error_feedback` what
rounding lost is added to the next step's gradient. With `check_finite` gradients that are not finite are looked for before they are
reduced (see [`sync!`](@ref)); with `check_large` one with 10 times the largest norm of its first 100 is warned of.

Julia's matrices are registered as what their memory is in C, with the dimensions reversed. `row_major = true` registers the sizes as they
are, for training together with ranks that are written in a row-major language: views are then permuted, and nothing is copied either.

Collective over the world; blocking, for at most the timeout. Throws `MegaDPError`: `:INVALID` with `param`, `:DESYNC` (ranks registered
different things), `:UNSUPPORTED`, `:MEMORY`, and those of a lost communicator.
"""
mutable struct Buffer <: Handle
    slot::Slot
    params::Vector{Param}
    row_major::Bool
    on_device::Bool
    begun::Int  # how often a caller's zero_grad! or microbatch! has begun anew, which a DataParallel has to know
end
@handle Buffer mdp_buffer
Base.deepcopy_internal(buffer::Buffer, ::IdDict) = not_copied(buffer)
destroy(::Buffer, pointer::UInt) = Raw.mdp_buffer_destroy(Ptr{Raw.mdp_buffer}(pointer))

function buffer_config(; sharding = :zero1, grad_dtype = :f32, missing = :error, bucket_elements = nothing, bucket_count = nothing,
                       overlap = true, high_bandwidth_padding = false, reference_buckets = false, ignore_memory = false,
                       pool_buckets = nothing, spill_limit = nothing, scaling = :mean, wire_dtype = :f32, error_feedback = false,
                       check_finite = false, check_large = false)
    flags = (overlap ? 0 : Raw.MDP_BUFFER_NO_OVERLAP) | (high_bandwidth_padding ? Raw.MDP_BUFFER_HIGH_BANDWIDTH_PADDING : 0) |
            (reference_buckets ? Raw.MDP_BUFFER_REFERENCE_BUCKETS : 0) | (ignore_memory ? Raw.MDP_BUFFER_IGNORE_MEMORY : 0) |
            (error_feedback ? Raw.MDP_BUFFER_ERROR_FEEDBACK : 0) | (check_finite ? Raw.MDP_BUFFER_CHECK_FINITE : 0) |
            (check_large ? Raw.MDP_BUFFER_CHECK_LARGE : 0)
    return Raw.mdp_buffer_config(; grad_dtype = choose(GRAD_DTYPES, "grad_dtype", grad_dtype),
                                 sharding = choose(SHARDINGS, "sharding", sharding), missing = choose(MISSINGS, "missing", missing),
                                 bucket_elements = something(bucket_elements, 0), bucket_count = something(bucket_count, 0), flags = flags,
                                 pool_buckets = something(pool_buckets, 0), spill_limit = something(spill_limit, 0),
                                 scaling = choose(SCALINGS, "scaling", scaling), wire_dtype = choose(WIRE_DTYPES, "wire_dtype", wire_dtype))
end

Buffer(comm::Comm, params; keywords...) = register(comm, C_NULL, params; keywords...)
Buffer(grid::Grid, params; keywords...) = register(C_NULL, grid, params; keywords...)

function register(comm, grid, params; row_major = false, keywords...)
    config = Ref(buffer_config(; keywords...))
    listed = collect(Param, params)
    sizes = [Int64[(row_major ? param.size : reverse(param.size))...] for param in listed]
    out = Ref{Ptr{Raw.mdp_buffer}}(C_NULL)
    GC.@preserve listed sizes begin
        raw = [raw_param(i, listed[i], sizes[i], row_major) for i in eachindex(listed)]
        check(Raw.mdp_buffer_register(comm, grid, config, raw, length(raw), out))
    end
    buffer = finalizer(close, Buffer(Slot(UInt(out[])), listed, row_major, false, 0))
    trained = findfirst(param -> !param.frozen, listed)
    if trained !== nothing
        tensor = Ref(Raw.mdp_tensor())
        check(Raw.mdp_buffer_param_view(buffer, trained - 1, tensor))
        buffer.on_device = tensor[].device_type != 1
    end
    return buffer
end

"Where the caller's own work stands in line with the library's; NULL on the host."
stream_for(buffer::Buffer) = buffer.on_device ? task_stream[]() : C_NULL

function raw_param(i, param, sizes, row_major)
    '\0' in param.name && throw(invalid("parameter $i has a name with a NUL in it: $(repr(param.name))"; param = i))
    '\0' in param.tie && throw(invalid("parameter $i has a tie with a NUL in it: $(repr(param.tie))"; param = i))
    haskey(DTYPES, param.dtype) ||
        throw(invalid("parameter $i, '$(param.name)', is of $(param.dtype); the library trains Float32, Float16 and BFloat16 (:bf16)"; param = i))
    dim = something(param.shard_dim, 1)
    1 <= dim <= max(length(sizes), 1) ||
        throw(invalid("parameter $i, '$(param.name)': shard_dim is $dim, of $(length(sizes)) dimensions"; param = i))
    typemin(Int32) <= param.use_order <= typemax(Int32) ||
        throw(invalid("parameter $i, '$(param.name)': use_order is $(param.use_order); it has 32 bits"; param = i))
    return Raw.mdp_param(; dtype = DTYPES[param.dtype], name = pointer(param.name), shape = pointer(sizes),
                         ndim = length(sizes), uses_per_step = param.uses, param_class = choose(CLASSES, "class", param.class),
                         placement = choose(PLACEMENTS, "placement", param.placement),
                         shard_dim = param.placement != :sharded ? 0 : row_major ? dim - 1 : length(sizes) - dim,
                         shard_stride = param.placement == :sharded ? param.shard_stride : 0, param_group = param.param_group - 1,
                         use_order = param.use_order, sharding = choose(SHARDINGS, "sharding", param.sharding), cost = param.cost,
                         flags = (param.frozen ? Raw.MDP_PARAM_FROZEN : 0) | (param.own_bucket ? Raw.MDP_PARAM_OWN_BUCKET : 0),
                         tie = isempty(param.tie) ? C_NULL : pointer(param.tie))
end

Base.length(buffer::Buffer) = length(buffer.params)
Base.show(io::IO, buffer::Buffer) = print(io, "Buffer(", length(buffer), " parameters", isopen(buffer) ? ")" : ", closed)")

"A parameter's number for the library. A wrong one is left to the library, whose numbers begin at 0, only where it cannot be told here."
function number_of(buffer, i::Integer)
    live(buffer)
    1 <= i <= length(buffer) || throw(invalid("param is $i; this buffer has parameters 1 to $(length(buffer))"))
    return i - 1
end

function number_of(buffer, name::AbstractString)
    found = Ref{Csize_t}(0)
    check(Raw.mdp_buffer_find(buffer, String(name), found))
    return Int(found[])
end

"""
    param_view(buffer, i) -> Array
    grad_view(buffer, i) -> Array

Memory of the library as an array: of parameter `i` (or of that name), or of its gradient. It stays valid while the array lives, also after the buffer was
closed. Parameters may be written between a step and the next forward pass, `changed!` follows; gradients before `ready!`. A gradient means
something after `sync!`: all of it with `:zero0`, the owned ranges with `:zero1`. Local. Throws `MegaDPError`: `:INVALID`, `:STATE` (frozen),
`:UNSUPPORTED` (bf16, in a Julia without that type; gradients with `:zero2`, see [`acquire_grad`](@ref) and [`owned_grad`](@ref)).
"""
param_view(buffer::Buffer, i) = view_of(Raw.mdp_buffer_param_view, buffer, i)
grad_view(buffer::Buffer, i) = view_of(Raw.mdp_buffer_grad_view, buffer, i)
@doc (@doc param_view) grad_view

function view_of(getter, buffer, i)
    number = number_of(buffer, i)
    return kept_view(tensor -> check(getter(buffer, number, tensor)), buffer, number)
end

"Calls a DLPack tensor's own deleter, the third word of its struct (after the version and the context). Any thread."
function give_back(managed)
    deleter = unsafe_load(Ptr{Ptr{Cvoid}}(managed), 3)
    deleter == C_NULL || ccall(deleter, Cvoid, (Ptr{Cvoid},), managed)
    return nothing
end

"The tensor of an array of a parameter's shape (by the library's number); what has no strides (sparse, lazy) is made an array first."
function shaped(buffer, number, array)
    i, param = Int(number) + 1, buffer.params[number+1]
    size(array) == param.size || throw(invalid("parameter $i, '$(param.name)', has size $(param.size), the array $(size(array))"; param = i))
    return borrow(strided(array) === nothing ? collect(array) : array, buffer.row_major)
end

"""
    put!(buffer, i, gradient; add = false, more = false)

Copies a gradient of parameter `i` into its place, casting, and counts it as arrived; what is complete leaves during backward. The first of
a step replaces what is there (unless `add`), later ones are added. `more = true`: more of the same use is coming. Any array of the
parameter's size, with any strides. Local; waits for the last step's update of the same bucket, with `:zero2` for nothing. Any thread, several
at a time for different parameters. Throws `MegaDPError`: `:INVALID` (size), `:STATE` (more often than `uses`; after `sync!`; frozen; skipped;
lent), `:MEMORY` (beyond `spill_limit`), `:UNSUPPORTED` (`add` with `:zero2`).
"""
function Base.put!(buffer::Buffer, i::Which, gradient::AbstractArray; add = false, more = false)
    flags = (add ? Raw.MDP_GRAD_ADD : 0) | (more ? Raw.MDP_GRAD_MORE : 0)
    number = number_of(buffer, i)
    check(Raw.mdp_grad_put(buffer, number, shaped(buffer, number, gradient), flags, stream_of(gradient)))
end

"""
    ready!(buffer, i)

The gradient of parameter `i` was written into its view, or into what `acquire_grad` lent (with `:zero2` only there); counts it as arrived.
Local, does not block, any thread. Throws as `put!`.
"""
ready!(buffer::Buffer, i::Which) = check(Raw.mdp_grad_ready(buffer, number_of(buffer, i), stream_for(buffer)))

"""
    skip!(buffer, i)

This rank has no gradient of parameter `i` in this microbatch. Skipped by all ranks, it is not updated; by some, those add zero. Local, does
not block, any thread. Throws as `put!`.
"""
skip!(buffer::Buffer, i::Which) = check(Raw.mdp_grad_skip(buffer, number_of(buffer, i)))

"""
    tokens!(buffer, count)

With `scaling = :tokens`: over how many tokens (or samples) this rank's losses of the step are summed. Steps and norms divide by the sum over the
data-parallel ranks, by 1 if that is 0; reduced gradients stay sums. Ranks that share a batch say the same, or one does. Once a step, before
`sync!`. Local; where gradients are half-width, on all ranks before the first one, collective over the world and blocking: there the reductions
divide. Throws `MegaDPError`: `:INVALID`, `:STATE`.
"""
tokens!(buffer::Buffer, count::Real) = check(Raw.mdp_grad_tokens(buffer, Float64(count)))

"""
    microbatch!(buffer; last)

Says whether the microbatch that begins is the step's last: only then do gradients leave. Without it every step has one. With `:zero2` they
leave in each, and this launches what the one before has left. Also begins anew after a `sync!` that failed or had no step. Local. Throws
`MegaDPError`: `:STATE`.
"""
function microbatch!(buffer::Buffer; last::Bool)
    check(Raw.mdp_microbatch_begin(buffer, last))
    buffer.begun += 1
    return nothing
end

"""
    zero_grad!(buffer)

Sets all gradients to zero and begins the step anew. Only needed where a framework adds into the views itself. Local. Throws `MegaDPError`: `:STATE` (a
bucket has left already: call `sync!(buffer)` on all ranks first, which may throw `:STATE`; of a `DataParallel`, `zero_grad!(dp)`).
"""
function zero_grad!(buffer::Buffer)
    on_all(text) = endswith(text, "sync!") ? text * " on all ranks, or of a DataParallel by zero_grad!(dp) on all ranks" : text
    check(Raw.mdp_buffer_zero_grad(buffer, stream_for(buffer)), on_all)
    buffer.begun += 1
    return nothing
end

"""
    sync!(buffer; async = false)

Ends backward: launches what is left, waits for all buckets, and agrees with all ranks on what was missing or skipped. [`step!`](@ref) calls
it by itself; it is for who looks at reduced gradients before the step. Collective over the
world; waits in slices of 50 ms, or returns a [`Request`](@ref). Throws `MegaDPError`, on all ranks: `:STATE` (a parameter without a gradient:
names it and the rank), after which no rank can step and `microbatch!` begins anew; `:NUMERIC` (`check_finite`: names parameter, element,
value, microbatch and rank), after which a step may follow, which is skipped if it has a `loss_scale`; and those of a lost communicator.
"""
sync!(buffer::Buffer; async = false) = finish(submit(out -> Raw.mdp_grad_sync(buffer, stream_for(buffer), out), buffer), async, nothing)

"""
    grad_norm(buffer; params = nothing) -> Float64

The L2 norm of the reduced gradients (of the listed parameters, or of all) over the whole model, each element counted once, as `step!` counts
it. Infinite or NaN where a gradient is not finite, on all ranks. After `sync!` and before the step. Collective over the world, with the same
list on ranks that share parameters; blocking. Throws `MegaDPError`: `:INVALID` (frozen, unknown or listed twice), `:STATE`.
"""
function grad_norm(buffer::Buffer; params = nothing)
    norm = Ref{Cdouble}(0)
    check(Raw.mdp_grad_norm(buffer, listed(buffer, params)..., norm))
    return norm[]
end

"""
    grad_summaries(buffer, sets = nothing; count = 1) -> Vector

Of each of `count` sets of parameters a named tuple `(norm, inf_norm, zeros, nonfinite)` over the whole model, as `grad_norm` counts it:
`sets[i]` is the set, from 1, that parameter `i` is in, `nothing`: in none; without `sets` all are in the first. After `sync!` and before the step.
Every rank gets the same. Collective over the world, with the same count; blocking. Throws `MegaDPError`: `:INVALID`, `:STATE`.
"""
function grad_summaries(buffer::Buffer, sets = nothing; count = 1)
    count >= 1 || throw(invalid("count is $count; there has to be a set"))
    sets === nothing || length(sets) == length(buffer) || throw(invalid("there are $(length(sets)) sets for $(length(buffer)) parameters"))
    all(set -> set === nothing || 1 <= set <= count, something(sets, ())) || throw(invalid("sets has a number that is not from 1 to $count"))
    numbers = sets === nothing ? C_NULL : Csize_t[set === nothing ? typemax(Csize_t) : set - 1 for set in sets]
    found = [Raw.mdp_grad_summary() for _ in 1:count]
    check(Raw.mdp_grad_summarize(buffer, numbers, count, found))
    return [(norm = one.norm, inf_norm = one.inf_norm, zeros = Int(one.zeros), nonfinite = Int(one.nonfinite)) for one in found]
end

"""
    scale_grads!(buffer, factor; params = nothing)

Multiplies the reduced gradients (of the listed parameters, or all) by a factor, in place: what `owned_grad` shows and `step!` uses. With
`:zero1` and `:zero2` what this rank owns of them. After `sync!` and before the step. Local; to be called alike on all ranks. Throws as
`grad_norm`, and `:INVALID` for a factor that is not finite.
"""
scale_grads!(buffer::Buffer, factor::Real; params = nothing) =
    check(Raw.mdp_grad_scale(buffer, listed(buffer, params)..., factor, stream_for(buffer)))

"""
    grads_changed!(buffer)

To be called after reduced gradients were written through `grad_view` or `owned_grad`, between `sync!` and the step. Local. Throws
`MegaDPError`: `:STATE`.
"""
grads_changed!(buffer::Buffer) = check(Raw.mdp_grad_changed(buffer, stream_for(buffer)))

"A list as the library takes it: an empty one has a pointer too, while none at all means all."
function listed(buffer, params)
    params === nothing && return C_NULL, 0
    numbers = Csize_t[number_of(buffer, i) for i in params]
    count = length(numbers)
    return isempty(numbers) ? Csize_t[0] : numbers, count
end

"""
    wait(buffer, i)
    wait(buffer)

Returns when parameter `i`, or every one, holds its values after the last step. Local, waits for at most the timeout; any thread.
"""
Base.wait(buffer::Buffer, i::Which) = check(Raw.mdp_param_wait(buffer, number_of(buffer, i), stream_for(buffer)))
Base.wait(buffer::Buffer) = check(Raw.mdp_param_wait(buffer, typemax(Csize_t), stream_for(buffer)))

"""
    read!(buffer, i, array)
    write!(buffer, i, array)

Copies parameter `i` into an array of its size, or from one, casting between floating-point types; any strides. What is written must be the
same on all ranks, or `bcast!(buffer)` follow. Local; waits as `wait`. Throws `MegaDPError`: `:INVALID`, `:STATE` (frozen).
"""
function Base.read!(buffer::Buffer, i::Which, array::AbstractArray)
    strided(array) === nothing && throw(invalid("read! needs an array with strides, not a $(typeof(array))"))
    number = number_of(buffer, i)
    check(Raw.mdp_param_read(buffer, number, shaped(buffer, number, array), stream_of(array)))
    return array
end
function write!(buffer::Buffer, i::Which, array::AbstractArray)
    number = number_of(buffer, i)
    check(Raw.mdp_param_write(buffer, number, shaped(buffer, number, array), stream_of(array)))
end
@doc (@doc Base.read!(::Buffer, ::Which, ::AbstractArray)) write!

"""
    changed!(buffer)

To be called after parameters were written through views: the optimizer's masters follow at the next step, where they do not
round to what was written. Local.
"""
changed!(buffer::Buffer) = check(Raw.mdp_param_changed(buffer))

"""
    bcast!(buffer; root = 0, async = false)

Copies all parameters from rank `root` of each data-parallel group to the others. Collective over the world; waits in slices of 50 ms, or
returns a [`Request`](@ref): until that has finished, parameters are neither read nor written.
"""
bcast!(buffer::Buffer; root = 0, async = false) = finish(submit(out -> Raw.mdp_buffer_broadcast(buffer, root, out), buffer), async, nothing)

"""
    verify(buffer)

Compares all parameters bit for bit over each data-parallel group, over tensor-parallel ranks what is not sharded, and what is tied; of the
latter two also reduced gradients. Collective over the world; blocking; slow. Throws `MegaDPError`: `:DESYNC` (names the first parameter that
differs and two ranks).
"""
verify(buffer::Buffer) = check(Raw.mdp_buffer_verify(buffer))

"""
    owned(buffer) -> Vector of named tuples

The pieces whose optimizer state this rank keeps: `param` and `bucket` (from 1), and `range`, which elements of the flattened parameter (from
1, in Julia's order of memory). Local.
"""
function owned(buffer::Buffer)
    needed = Ref{Csize_t}(0)
    check(Raw.mdp_buffer_owned(buffer, C_NULL, 0, needed))
    needed[] == 0 && return NamedTuple{(:param, :bucket, :range),Tuple{Int,Int,UnitRange{Int}}}[]
    ranges = fill(Raw.mdp_range(), needed[])
    check(Raw.mdp_buffer_owned(buffer, ranges, length(ranges), needed))
    return [(param = Int(r.param) + 1, bucket = Int(r.bucket) + 1, range = (1:Int(r.stop - r.start)) .+ Int(r.param_begin)) for r in ranges]
end

"""
    stats(buffer) -> NamedTuple

Sums since registration: `comm_ns`, `exposed_ns`, `bytes`, `buckets`, `launched_in_backward`, `syncs`, `host_syncs`; and with
`:zero2` `spill_peak_bytes`, the most bytes of gradients outside the pool at a time; and with `check_large` `large_gradients`, the warnings. Local.
"""
function stats(buffer::Buffer)
    out = Ref(Raw.mdp_stats_report())
    check(Raw.mdp_buffer_stats(buffer, out))
    return named(out[])
end

"""
    use_order(buffer) -> Vector{Int}

Of each parameter the `use_order` of [`Param`](@ref) with which the last synced step's gradients would have filled bucket after bucket; for the
next time that they are registered. These are no parameters' numbers: they are given on as they are. The same on all ranks of a stage.
Collective over the world; blocking. Throws `MegaDPError`: `:STATE` (no sync yet), `:UNSUPPORTED` (ranks of a stage hold different experts).
"""
function use_order(buffer::Buffer)
    found = zeros(Int32, max(length(buffer), 1))
    check(Raw.mdp_buffer_use_order(buffer, found, length(buffer)))
    return Int.(found[1:length(buffer)])
end

"""
    bucket_count(buffer) -> Int

How many buckets there are. Local.
"""
function bucket_count(buffer::Buffer)
    params, buckets = Ref{Csize_t}(0), Ref{Csize_t}(0)
    check(Raw.mdp_buffer_counts(buffer, params, buckets))
    return Int(buckets[])
end

"""
    bucket(buffer, k) -> NamedTuple

The last step's times of bucket `k` (from 1, in order of launch), in nanoseconds of CLOCK_MONOTONIC, 0 where it has not happened: `ready_ns`,
`reduce_begin_ns`, `reduce_end_ns`, `gather_begin_ns`, `gather_end_ns`, `sync_ns`; and its `state`. Local.
"""
function bucket(buffer::Buffer, k::Integer)
    k >= 1 || throw(invalid("bucket is $k; buckets are counted from 1"))
    out = Ref(Raw.mdp_bucket_report())
    check(Raw.mdp_buffer_bucket(buffer, k - 1, out))
    return merge(named(out[]), (state = STATES[out[].state+1],))
end
