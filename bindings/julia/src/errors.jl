# SPDX-License-Identifier: Apache-2.0
# Statuses become exceptions, with everything the library knows about a failure.

"""
    MegaDPError

A call failed. `kind` says how: `:INVALID` (an argument), `:STATE` (the wrong moment; also use after `close`), `:UNSUPPORTED`, `:MEMORY`,
`:SYSTEM`, `:BACKEND`, `:PEER` (another rank died or left), `:TIMEOUT`, `:DESYNC` (ranks did different things), `:ABORTED`, `:NUMERIC` (not
finite), `:CORRUPT`, `:INTERNAL`; `code` is the same as the library's number. `rank` is the rank to blame, counted from 0 in the world;
`param` and `bucket` are counted from 1, parameters in order of registration, buckets in order of launch; all three are `nothing` where
they are not known. `operation` numbers the collective within its group (0: none). `text` is the sentence that explains it.
"""
struct MegaDPError <: Exception
    code::Int32
    kind::Symbol
    rank::Union{Int,Nothing}
    bucket::Union{Int,Nothing}
    param::Union{Int,Nothing}
    operation::UInt64
    text::String
end

function Base.showerror(io::IO, problem::MegaDPError)
    print(io, "MegaDPError (", problem.kind, "): ", problem.text)
end

function kind_of(status)
    name = unsafe_string(Raw.mdp_status_name(status))
    return Symbol(startswith(name, "MDP_E_") ? name[7:end] : name)
end

"An error that this package finds by itself, before the library is called."
failure(status, text; param = nothing) = MegaDPError(status, kind_of(status), nothing, nothing, param, 0, text)
invalid(text; param = nothing) = failure(Raw.MDP_E_INVALID, text; param = param)

"Operations of a step by their names here, in sentences that say what to call."
const CALLS = (r"\bmdp_buffer_zero_grad\b" => "zero_grad!", r"\bmdp_grad_sync\b" => "sync!", r"\bmdp_microbatch_begin\b" => "microbatch!",
               r"\bmdp_optimizer_set_steps\b" => "set_steps!", r"\bmdp_optimizer_step\b" => "step!", r"\bmdp_grad_put\b" => "put!")

"""
A sentence of the library in words of Julia's: the library counts parameters, and elements of one, from 0, and has C's names for settings and operations.
"""
function in_julias_words(text)
    rules = (r"(?<=\bparameter )\d+(?= ')|(?<=\belement )\d+(?= of parameter )" => found -> parse(Int, found) + 1,
             "mdp_optimizer_step_finish: failed is 1" => "the function that updates has thrown",
             r"\bmdp_microbatch_begin \(is_last 1\)" => "microbatch!(…; last = true)", CALLS...,
             "config.part_count is 0; a checkpoint has at least one buffer" =>
                 "parts is empty; a checkpoint has at least one Optimizer, Buffer or DataParallel",
             r"\bmdp_(?:comm|buffer|optimizer|grid)_config\.(?=\w)" => "", "MDP_OP_AVG" => "avg", "MDP_OP_SUM" => "+", "MDP_OP_MAX" => "max",
             "MDP_OP_MIN" => "min")
    return foldl(replace, rules; init = text)
end

known(number, base) = number < 0 ? nothing : Int(number) + base

"A struct that the library fills, as a pointer: uninitialised apart from its size."
function sized(::Type{T}) where {T}
    out = Ref{T}()
    GC.@preserve out unsafe_store!(Ptr{UInt32}(Base.unsafe_convert(Ptr{T}, out)), sizeof(T))
    return out
end

function error_of(info::Ref{Raw.mdp_error_info})
    text = GC.@preserve info begin
        start = Ptr{UInt8}(Base.unsafe_convert(Ptr{Raw.mdp_error_info}, info))
        unsafe_string(start + fieldoffset(Raw.mdp_error_info, fieldcount(Raw.mdp_error_info)))
    end
    i = info[]
    return MegaDPError(i.status, kind_of(i.status), known(i.rank, 0), known(i.bucket, 1), known(i.param, 1), i.operation, in_julias_words(text))
end

"""
The exception of this thread's last call, which failed. Between that call and this one a task does not change threads, since nothing yields;
and what the collector may run in between, a destroy, leaves the text as it is.
"""
@noinline function last_error(status)
    info = sized(Raw.mdp_error_info)
    Raw.mdp_last_error_info(info)
    found = error_of(info)
    return found.code == status ? found : failure(status, "no details")
end

"Returns where the status is not a failure, and throws a `MegaDPError` otherwise, whose sentence `words` may change."
check(status, words = identity) = status < 0 ? throw(reworded(last_error(status), words)) : nothing

reworded(problem, words) = MegaDPError(problem.code, problem.kind, problem.rank, problem.bucket, problem.param, problem.operation, words(problem.text))

"The sizes in a sentence the other way round, as Julia's arrays have them: [3,2] is (2, 3)."
sizes_turned(text) = replace(text, r"(?<![\w\]])\[[-\d,]*\]" => list -> size_text(reverse(split(list[2:end-1], ','; keepempty = false))))
size_text(sizes) = string("(", join(sizes, ", "), length(sizes) == 1 ? ",)" : ")")
