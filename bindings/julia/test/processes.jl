# SPDX-License-Identifier: Apache-2.0
# Programs of tests/programs, run as ranks by `megadp run`.

const PACKAGE = dirname(@__DIR__)
const PROGRAMS = joinpath(@__DIR__, "programs")

"The julia of this process with the package's project; the tests' environment goes with it."
julia_command() = `$(Base.julia_cmd()) --startup-file=no --project=$PACKAGE`

struct Outcome
    status::Int
    output::String
end

"Runs a program as `ranks` ranks. It is killed after five minutes: then something waits for ever."
function run_ranks(ranks, program, arguments...; environment = Dict{String,String}())
    megadp = ENV["MEGADP_PROGRAM"]
    command = `$megadp run -n $ranks --no-prefix --grace 60 -- $(julia_command()) $(joinpath(PROGRAMS, program)) $arguments`
    output = IOBuffer()
    process = run(pipeline(ignorestatus(setenv(command, merge(ENV, environment))); stdout = output, stderr = output); wait = false)
    patience = Timer(_ -> kill(process, Base.SIGKILL), 280)
    wait(process)
    close(patience)
    text = String(take!(output))
    return Outcome(process.termsignal != 0 ? 128 + process.termsignal : process.exitcode, text)
end

"What ranks said by `report(name, value)`: name => values, one for each rank that said it, in the order of ranks."
function said(outcome, name)
    found = [(parse(Int, m[1]), read_json(m[2])) for m in eachmatch(Regex("^rank (\\d+) $name (.*)\$", "m"), outcome.output)]
    return [value for (_, value) in sort!(found; by = first)]
end

"A failing run is told with all that it printed."
function succeeded(outcome)
    outcome.status == 0 || println("left with $(outcome.status) and said:\n", outcome.output)
    return outcome.status == 0
end
