# SPDX-License-Identifier: Apache-2.0
# Communicators: this rank in an ordered group, and collectives on arrays of the caller's.

const BACKENDS = Dict(:auto => Raw.MDP_BACKEND_AUTO, :host => Raw.MDP_BACKEND_HOST, :cuda => Raw.MDP_BACKEND_CUDA)

"""
    Comm(; backend = :auto, device = nothing, timeout = nothing, exact_sums = false, sockets = false, host_threads = 0, threads_always = false,
         id = nothing, bootstrap = nothing, rank = 0, size = 0)
    Comm(body; ...)

Joins the ranks of this job into one communicator, the world. Without `id`, rank, number of ranks and where to meet come from the launcher
(`megadp run`, torchrun, SLURM, Open MPI, MPICH); a program started alone is a world of one. With an `id` of [`unique_id`](@ref), `rank`
(from 0) and `size` say who this is. So they do with a `bootstrap`, for ranks that can reach each other already (Distributed, MPI): a function
that is given bytes and returns a vector of the bytes of all ranks, in their order. It is called twice, inside this call alone, in a task of its
own, and may block; at the timeout it is left to itself. What it carries holds a secret: who reads it may join.

`backend` is `:auto`, `:host` or `:cuda`; `device` the CUDA device (`nothing`: by the rank's number on its node); `timeout`, in seconds, how
long any collective waits for another rank (`nothing`: five minutes); `exact_sums` makes CUDA add up as the CPU does; with `sockets`, alike on
all ranks, data of the host goes between nodes over sockets on which both sides prove that they know the job's secret, and not over UCX. `host_threads` (0:
a share of the processors) work on a long array of the host together, while the program waits; with `threads_always` also while it computes.
Given a `body`, calls it with the communicator, closes that in the end and returns what `body` does.

Collective over the job; blocking, for at most the timeout. One communicator, and all that is made from it, is for
one thread at a time, except where it is said. Throws `MegaDPError`: `:INVALID`, `:UNSUPPORTED`, `:TIMEOUT`, `:PEER`, `:DESYNC`, `:SYSTEM`.
"""
mutable struct Comm <: Handle
    slot::Slot
    Comm(pointer::Ptr{Raw.mdp_comm}) = finalizer(close, new(Slot(UInt(pointer))))
end
@handle Comm mdp_comm
destroy(::Comm, pointer::UInt) = Raw.mdp_comm_destroy(Ptr{Raw.mdp_comm}(pointer))

function comm_config(; backend = :auto, device = nothing, timeout = nothing, exact_sums = false, sockets = false, host_threads = 0,
                     threads_always = false, rank = 0, size = 0, bootstrap = C_NULL)
    timeout === nothing || timeout > 0 || throw(invalid("timeout is $timeout; it is in seconds and more than 0"))
    flags = (device === nothing ? 0 : Raw.MDP_COMM_SET_DEVICE) | (exact_sums ? Raw.MDP_COMM_EXACT_SUMS : 0) |
            (sockets ? Raw.MDP_COMM_SOCKETS : 0) | (threads_always ? Raw.MDP_COMM_THREADS_ALWAYS : 0)
    return Raw.mdp_comm_config(; backend = choose(BACKENDS, "backend", backend), rank = rank, size = size, device = something(device, 0),
                               host_threads = host_threads, flags = flags, timeout_ns = timeout === nothing ? 0 : ceil(UInt64, timeout * 1e9), bootstrap = bootstrap,
                               interrupted = @cfunction(Raw.interrupted, Int32, (Ptr{Cvoid},)))
end

function Comm(; id = nothing, bootstrap = nothing, size = 0, keywords...)
    meeting = Meeting(bootstrap, size)
    raw = Ref(raw_bootstrap(meeting))
    config = Ref(comm_config(; size = size, bootstrap = bootstrap === nothing ? C_NULL : Base.unsafe_convert(Ptr{Raw.mdp_bootstrap}, raw),
                             keywords...))
    id === nothing || length(id) == sizeof(Raw.mdp_unique_id) ||
        throw(invalid("id has $(length(id)) bytes; unique_id() makes them, $(sizeof(Raw.mdp_unique_id)) of them"))
    out = Ref{Ptr{Raw.mdp_comm}}(C_NULL)
    bytes = id === nothing ? UInt8[] : Vector{UInt8}(id)
    status = GC.@preserve bytes meeting raw Raw.mdp_comm_create(config, id === nothing ? C_NULL : Ptr{Raw.mdp_unique_id}(pointer(bytes)), out)
    meeting.problem === nothing || tell_of(meeting.problem)
    check(status)
    return Comm(out[])
end

Comm(body::Base.Callable; keywords...) = closing(body, Comm(; keywords...))

function Base.show(io::IO, comm::Comm)
    isopen(comm) ? print(io, "Comm(rank ", local_rank(comm), " of ", total_workers(comm), ")") : print(io, "Comm(closed)")
end

"""
    unique_id() -> Vector{UInt8}

A fresh name and secret under which ranks find each other, for one `Comm` on each rank. Made by one rank and carried to the others by other
means; who has it may join. Local, any thread.
"""
function unique_id()
    bytes = zeros(UInt8, sizeof(Raw.mdp_unique_id))
    GC.@preserve bytes check(Raw.mdp_unique_id_create(Ptr{Raw.mdp_unique_id}(pointer(bytes))))
    return bytes
end

"""
    local_rank(comm) -> Int

This process's rank in the communicator, from 0. As Lux's and FluxMPI's function of this name. Local, any thread.
"""
local_rank(comm::Comm) = known_rank(Raw.mdp_comm_rank(comm))

"""
    total_workers(comm) -> Int

How many ranks the communicator has. As Lux's and FluxMPI's function of this name. Local, any thread.
"""
total_workers(comm::Comm) = known_rank(Raw.mdp_comm_size(comm))

"""
    world_rank(comm, rank = local_rank(comm)) -> Int

The rank in the world (the communicator that was not split) of rank `rank` of `comm`: the number that every [`MegaDPError`](@ref) names.
Local, any thread. Throws `MegaDPError`: `:INVALID`.
"""
function world_rank(comm::Comm, rank::Integer = local_rank(comm))
    number = Raw.mdp_comm_world_rank(comm, rank)
    return number < 0 ? throw(last_error(Raw.MDP_E_INVALID)) : Int(number)
end

known_rank(number) = number < 0 ? throw(last_error(Raw.MDP_E_STATE)) : Int(number)

"""
    split(comm, color; key = local_rank(comm)) -> Comm or nothing

Cuts a communicator: ranks with the same `color` (from 0) form a new one, ordered by `key`. A rank with a negative color gets `nothing`.
The parts share the failure of `comm`. Collective over `comm`; blocking. Throws `MegaDPError`.
"""
function Base.split(comm::Comm, color::Integer; key::Integer = local_rank(comm))
    out = Ref{Ptr{Raw.mdp_comm}}(C_NULL)
    check(Raw.mdp_comm_split(comm, color, key, out))
    return out[] == C_NULL ? nothing : Comm(out[])
end

"""
    lost(comm) -> MegaDPError or nothing

The failure that made this communicator, and all that shares its tree, unusable: it can then only be closed. Local, any thread.
"""
function lost(comm::Comm)
    info = sized(Raw.mdp_error_info)
    check(Raw.mdp_comm_error_info(comm, info))
    return info[].status == Raw.MDP_OK ? nothing : error_of(info)
end

"""
    abort(comm)

Makes the communicator's tree unusable on all ranks: what is pending, and every later call, ends with `:ABORTED` and names this rank. For a
rank that cannot go on and would leave the others waiting. Does not block; any thread.
"""
abort(comm::Comm) = check(Raw.mdp_comm_abort(comm))

"""
    barrier(comm; async = false)

Returns when all ranks have called it and the collectives that this rank began before have finished; or a [`Request`](@ref) at once.
Collective; waits in slices of 50 ms, for at most the timeout.
"""
barrier(comm::Comm; async = false) = finish(submit(out -> Raw.mdp_barrier(comm, out)), async, nothing)

"The mean over ranks, as an operation of [`allreduce!`](@ref)."
function avg end

function operation(op)
    op === avg && return Raw.MDP_OP_AVG
    op === (+) && return Raw.MDP_OP_SUM
    op === max && return Raw.MDP_OP_MAX
    op === min && return Raw.MDP_OP_MIN
    throw(invalid("op is $op; it can be avg, +, max or min"))
end

function dense(array, argument)
    isdense(array) && return borrow_flat(array)
    throw(invalid("$argument is a $(typeof(array)), which is not dense; a copy is"))
end

"""
    allreduce!(comm, array, op = avg; async = false)
    allreduce!(comm, from, to, op; async = false)

`array` (or `to`) becomes `op` over all ranks of `array` (or `from`): `avg`, `+`, `max` or `min`. Ranks are summed along a
fixed balanced binary tree in fp32 (Float64 in itself), so that results do not depend on timing. `avg` is not for integers. Element types:
Float32, Float16, Float64, BFloat16, Int64, UInt8; arrays are dense, in memory of the host or of the rank's device.

Returns the array, or a [`Request`](@ref). Collective over `comm`, with equal lengths and types; waits in slices of 50 ms. Throws
`MegaDPError`: `:INVALID`, `:UNSUPPORTED`, and those of a lost communicator.
"""
allreduce!(comm::Comm, array::AbstractArray{<:Number}, op = avg; async = false) = allreduce!(comm, array, array, op; async = async)

function allreduce!(comm::Comm, from::AbstractArray{<:Number}, to::AbstractArray{<:Number}, op; async = false)
    source, target, code = dense(from, "from"), dense(to, "to"), operation(op)
    finish(submit(out -> Raw.mdp_all_reduce(comm, source, target, code, stream_of(to), out), source, target), async, to)
end

"""
    bcast!(comm, array; root = 0, async = false)

`array` becomes rank `root`'s on all ranks. As [`allreduce!`](@ref) otherwise.
"""
function bcast!(comm::Comm, array::AbstractArray{<:Number}; root = 0, async = false)
    target = dense(array, "array")
    finish(submit(out -> Raw.mdp_broadcast(comm, target, root, stream_of(array), out), target), async, array)
end

"""
    reduce_scatter!(comm, from, to, op = avg; async = false)

`from` has as many pieces of the length of `to` as there are ranks; `to` becomes `op` over all ranks of the piece with this rank's number.
As [`allreduce!`](@ref) otherwise.
"""
function reduce_scatter!(comm::Comm, from, to, op = avg; async = false)
    source, target, code = dense(from, "from"), dense(to, "to"), operation(op)
    finish(submit(out -> Raw.mdp_reduce_scatter(comm, source, target, code, stream_of(to), out), source, target), async, to)
end

"""
    allgather!(comm, from, to; async = false)

`to` becomes the `from` of all ranks, one after another. As [`allreduce!`](@ref) otherwise.
"""
function allgather!(comm::Comm, from, to; async = false)
    source, target = dense(from, "from"), dense(to, "to")
    finish(submit(out -> Raw.mdp_all_gather(comm, source, target, stream_of(to), out), source, target), async, to)
end

"""
    alltoall!(comm, from, to; async = false)

Piece r of `from` becomes this rank's piece of rank r's `to`. As [`allreduce!`](@ref) otherwise.
"""
function alltoall!(comm::Comm, from, to; async = false)
    source, target = dense(from, "from"), dense(to, "to")
    finish(submit(out -> Raw.mdp_all_to_all(comm, source, target, stream_of(to), out), source, target), async, to)
end

function counts_of(comm, counts, argument)
    length(counts) == total_workers(comm) || throw(invalid("$argument has $(length(counts)) numbers; it has one for each of the $(total_workers(comm)) ranks"))
    all(>=(0), counts) || throw(invalid("$argument has a negative number"))
    return UInt64.(counts)
end

"""
    reduce_scatter_v!(comm, from, to, counts, op = avg; async = false)

As [`reduce_scatter!`](@ref) with pieces of different sizes: `counts[r + 1]` elements for rank r, the same on all ranks. Arrays of the host.
"""
function reduce_scatter_v!(comm::Comm, from, to, counts, op = avg; async = false)
    source, target, code, list = dense(from, "from"), dense(to, "to"), operation(op), counts_of(comm, counts, "counts")
    finish(submit(out -> Raw.mdp_reduce_scatter_v(comm, source, target, list, code, stream_of(to), out), source, target), async, to)
end

"""
    allgather_v!(comm, from, to, counts; async = false)

As [`allgather!`](@ref) with pieces of different sizes: `counts[r + 1]` elements of rank r, the same on all ranks. Arrays of the host.
"""
function allgather_v!(comm::Comm, from, to, counts; async = false)
    source, target, list = dense(from, "from"), dense(to, "to"), counts_of(comm, counts, "counts")
    finish(submit(out -> Raw.mdp_all_gather_v(comm, source, target, list, stream_of(to), out), source, target), async, to)
end

"""
    alltoall_v!(comm, from, from_counts, to, to_counts; async = false)

As [`alltoall!`](@ref) with pieces of different sizes, never in place: `from_counts[r + 1]` elements go to rank r, `to_counts[r + 1]` come
from it. Arrays of the host.
"""
function alltoall_v!(comm::Comm, from, from_counts, to, to_counts; async = false)
    source, target = dense(from, "from"), dense(to, "to")
    sent, expected = counts_of(comm, from_counts, "from_counts"), counts_of(comm, to_counts, "to_counts")
    finish(submit(out -> Raw.mdp_all_to_all_v(comm, source, sent, target, expected, stream_of(to), out), source, target), async, to)
end

"""
    send(comm, array, rank; async = false)

Sends `array` to another rank, which receives as much of the same type; no other rank takes part. It may wait for the receiver. Arrays of the
host.
"""
function send(comm::Comm, array, rank; async = false)
    source = dense(array, "array")
    finish(submit(out -> Raw.mdp_send(comm, source, rank, stream_of(array), out), source), async, array)
end

"""
    recv!(comm, array, rank; async = false)

`array` becomes what another rank sends this one: the first that was not received yet. As [`send`](@ref) otherwise.
"""
function recv!(comm::Comm, array, rank; async = false)
    target = dense(array, "array")
    finish(submit(out -> Raw.mdp_recv(comm, target, rank, stream_of(array), out), target), async, array)
end

"""
    send_recv!(comm, from, to_rank, to, from_rank; async = false)

Sends `from` to rank `to_rank` and receives `to` from rank `from_rank`, both at once. A rank of -1 leaves that half out. As [`send`](@ref)
otherwise.
"""
function send_recv!(comm::Comm, from, to_rank, to, from_rank; async = false)
    source, target = dense(from, "from"), dense(to, "to")
    finish(submit(out -> Raw.mdp_send_recv(comm, source, to_rank, target, from_rank, stream_of(to), out), source, target), async, to)
end

"""
    info() -> String

What the library is and what it sees, as one line of JSON: version, backends, transport, machine, launch. Local, any thread.
"""
info() = text_of(Raw.mdp_info)

"What a function of the header that answers with text says: `call(bytes, capacity, needed)`."
function text_of(call)
    needed = Ref{Csize_t}(0)
    check(call(C_NULL, 0, needed))
    while true  # what it tells may grow between two calls
        bytes = Vector{UInt8}(undef, needed[])
        status = call(bytes, length(bytes), needed)
        status == Raw.MDP_OK && return String(bytes[1:needed[]-1])
        needed[] > length(bytes) || check(status)
    end
end
