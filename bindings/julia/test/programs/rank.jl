# SPDX-License-Identifier: Apache-2.0
# What all programs of ranks begin with: the package, and a way to say something that the test reads.
using MegaDP

json(value::AbstractString) = repr(value)
json(value::Symbol) = repr(string(value))
json(value::Union{Real,Nothing}) = value === nothing ? "null" : string(value)
json(values::AbstractVector) = "[" * join(map(json, values), ",") * "]"

"One line, so that those of different ranks stay apart."
function report(comm, name, value)
    println("rank ", local_rank(comm), " ", name, " ", json(value))
    flush(stdout)
end

"The library's exception that `body` ends with, or `nothing`."
function caught(body)
    try
        body()
        return nothing
    catch problem
        problem isa MegaDPError || rethrow()
        return problem
    end
end

"Waits for something that another rank or the communication thread will do; four minutes are for ever."
function await(condition, what)
    until = time() + 240
    while !condition()
        time() < until || error("waited four minutes for $what")
        sleep(0.002)
    end
end
