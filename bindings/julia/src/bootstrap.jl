# SPDX-License-Identifier: Apache-2.0
# A function that gathers bytes over all ranks, as the library's mdp_bootstrap. It runs in a task of its own, and may block: the library asks
# now and then whether it has ended, and other tasks of this thread run meanwhile.

mutable struct Meeting
    gather::Any
    ranks::Int
    size::Int
    everyone::Ptr{UInt8}
    task::Union{Task,Nothing}
    problem::Any  # what ended the last gathering
end
Meeting(gather, ranks) = Meeting(gather, ranks, 0, C_NULL, nothing, nothing)

function begin_gathering(meeting::Meeting, mine::Ptr{UInt8}, size, everyone::Ptr{UInt8})
    bytes = copy(unsafe_wrap(Array, mine, size))
    meeting.size, meeting.everyone = size, everyone
    meeting.task = @async meeting.gather(bytes)
    return Int32(0)
end

function look_at_gathering(meeting::Meeting)
    for _ in 1:8  # messages take several turns
        istaskdone(meeting.task) || yield()
    end
    istaskdone(meeting.task) || return Int32(0)
    parts = fetch(meeting.task)
    sizes = [length(part) for part in parts]
    sizes == fill(meeting.size, meeting.ranks) || error("the bootstrap returned parts of $sizes bytes; it must return $(meeting.ranks) of ",
                                                        "$(meeting.size) bytes each, in the order of ranks")
    for (i, part) in enumerate(parts)
        bytes = Vector{UInt8}(part)
        GC.@preserve bytes unsafe_copyto!(meeting.everyone + (i - 1) * meeting.size, pointer(bytes), meeting.size)
    end
    return Int32(1)
end

"Runs Julia inside a call that has told the collector that there is none (`Raw.@waiting`). What it throws is kept in `holder.problem`, and -1 returned."
function inside(body, holder)
    state = ccall(:jl_gc_unsafe_enter, Int8, ())
    answer = try
        body()
    catch problem
        holder.problem = problem
        Int32(-1)
    end
    ccall(:jl_gc_unsafe_leave, Cvoid, (Int8,), state)
    return answer
end

meeting_at(context) = unsafe_pointer_to_objref(context)::Meeting
start_gathering(context, mine, size, everyone, _) =
    inside(() -> begin_gathering(meeting_at(context), Ptr{UInt8}(mine), Int(size), Ptr{UInt8}(everyone)), meeting_at(context))
test_gathering(context, _) = inside(() -> look_at_gathering(meeting_at(context)), meeting_at(context))
free_gathering(_, _) = nothing  # a task that still waits is left alone

"Of what the bootstrap threw; a Ctrl-C that came while it ran is thrown on."
function tell_of(problem)
    cause = problem isa TaskFailedException ? problem.task.exception : problem
    cause isa InterruptException && throw(cause)
    @error "the bootstrap failed" exception = problem
end

raw_bootstrap(meeting::Meeting) = Raw.mdp_bootstrap(;
    context = pointer_from_objref(meeting),
    allgather_start = @cfunction(start_gathering, Int32, (Ptr{Cvoid}, Ptr{Cvoid}, Csize_t, Ptr{Cvoid}, Ptr{Cvoid})),
    allgather_test = @cfunction(test_gathering, Int32, (Ptr{Cvoid}, Ptr{Cvoid})),
    allgather_free = @cfunction(free_gathering, Cvoid, (Ptr{Cvoid}, Ptr{Cvoid})))
