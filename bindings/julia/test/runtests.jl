# SPDX-License-Identifier: Apache-2.0
# All tests, or the groups named on the command line. Each `testcase` is counted; the last line says how many there were.
using MegaDP, Test

const GROUPS = ("mirror", "bootstrap", "package", "digits", "ranks", "extensions", "context", "readme")
const counted = Ref(0)
const begun = time()

"A named test. One that leaves something out prints why and returns `skip(reason)`."
function testcase(body, name)
    started = time()
    outcome = Ref{Any}(nothing)
    @testset "$name" begin
        outcome[] = body()
    end
    if outcome[] isa Skipped
        println("skipped julia.$name: ", outcome[].reason)
    else
        counted[] += 1
        println("ran $name ($(round(time() - started; digits = 1)) s)")
    end
end

struct Skipped
    reason::String
end

include("json.jl")
include("processes.jl")

"The library's exception that `body` ends with."
function caught(body)
    try
        body()
    catch problem
        problem isa MegaDPError && return problem
        rethrow()
    end
    error("nothing was thrown")
end

chosen = isempty(ARGS) ? GROUPS : Tuple(ARGS)
for group in chosen
    group in GROUPS || error("no group of tests is called '$group'; there are ", join(GROUPS, ", "))
end
@testset "MegaDP" begin
    for group in chosen
        include(group * ".jl")
    end
end
println("$(counted[]) tests in $(round(time() - begun; digits = 1)) s, Julia $VERSION")
