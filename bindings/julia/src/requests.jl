# SPDX-License-Identifier: Apache-2.0
# Operations under way, and waiting for them in slices.

const SLICE_NS = UInt64(50_000_000)  # how long a Ctrl-C or another task has to wait at most

"""
    Request

An operation under way, from a call with `async = true`. `wait(request)` returns when it has finished, or throws what it failed with;
`isready(request)` asks. Both are local and may be called from any thread. The arrays of the operation are kept alive until it has
finished, also when the request is forgotten or waiting for it was interrupted; they must not be touched before.
"""
mutable struct Request
    slot::Slot
    kept::Any
end

Base.cconvert(::Type{Ptr{Raw.mdp_request}}, request::Request) = request
Base.unsafe_convert(::Type{Ptr{Raw.mdp_request}}, request::Request) = Ptr{Raw.mdp_request}(request.slot[])

# Holding a request is what keeps its arrays alive. Those that have finished are found when the next one begins.
const in_flight = Set{Request}()
const in_flight_lock = ReentrantLock()

function release(request::Request)
    pointer = Threads.atomic_xchg!(request.slot, UInt(0))
    pointer == 0 || Raw.mdp_request_free(Ptr{Raw.mdp_request}(pointer))
    return nothing
end

"Calls `start` with the place for a request, and returns that. What it writes to or reads from is in `kept`."
function submit(start, kept...)
    return Base.disable_sigint() do  # between the start and its being noted down an interrupt would lose the arrays
        out = Ref{Ptr{Raw.mdp_request}}(C_NULL)
        Threads.threadid() == 1 && (Raw.held_back[] = true)
        try
            check(start(out))
        finally
            Threads.threadid() == 1 && (Raw.held_back[] = false)
        end
        request = finalizer(release, Request(Slot(UInt(out[])), kept))
        # Asking takes note of a failure, so that only those are asked that have something to let go of.
        isempty(kept) || lock(in_flight_lock) do
            filter!(other -> Raw.mdp_request_test(other) == Raw.MDP_PENDING, in_flight)
            push!(in_flight, request)
        end
        return request
    end
end

forget(request) = lock(() -> delete!(in_flight, request), in_flight_lock)

function Base.isready(request::Request)
    status = Raw.mdp_request_test(request)
    status == Raw.MDP_PENDING && return false
    forget(request)
    return true
end

function Base.wait(request::Request)
    status = Raw.mdp_request_wait(request, SLICE_NS)
    while status == Raw.MDP_PENDING
        yield()  # other tasks, and an interrupt
        status = Raw.mdp_request_wait(request, SLICE_NS)
    end
    problem = status < 0 ? last_error(status) : nothing
    forget(request)
    problem === nothing || throw(problem)
    return nothing
end

Base.deepcopy_internal(request::Request, ::IdDict) = request

Base.show(io::IO, ::Request) = print(io, "Request(…)")

"The request, or `value` once it is done."
finish(request, async, value) = async ? request : (wait(request); value)
