# SPDX-License-Identifier: Apache-2.0
# Of Raw: calls that may wait for another rank, and what a Ctrl-C does meanwhile.

"What a Ctrl-C has thrown while the main thread waited inside the library, until that call has come back."
const interruption = Ref{Any}(nothing)

"Whether the main thread's call is made where a Ctrl-C is held back once more, by `disable_sigint`."
const held_back = Ref(false)

"For `mdp_comm_config.interrupted`: whether a Ctrl-C has come. `@waiting` holds it back, so that it is thrown nowhere but here."
function interrupted(_)
    state = ccall(:jl_gc_unsafe_enter, Int8, ())
    answer = try
        # What is said of the main thread's call is nothing to another thread's, which holds back once.
        Base.reenable_sigint(() -> held_back[] && Threads.threadid() == 1 ? Base.reenable_sigint(() -> Int32(0)) : Int32(0))
    catch problem
        interruption[] = problem
        Int32(1)
    end
    ccall(:jl_gc_unsafe_leave, Cvoid, (Int8,), state)
    return answer
end

function throw_interruption()
    problem = interruption[]
    (problem === nothing || Threads.threadid() != 1) && return nothing
    interruption[] = nothing
    throw(problem)
end

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
            ccall(:jl_sigatomic_begin, Cvoid, ())
            state = ccall(:jl_gc_safe_enter, Int8, ())
            result = ccall(entry, $result, $types, $(plain...))
            ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
            ccall(:jl_sigatomic_end, Cvoid, ())
            throw_interruption()
            result
        end
    end
end
