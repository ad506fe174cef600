# SPDX-License-Identifier: Apache-2.0
# Several ranks, as processes of `megadp run`.

const reference = read_json(read(joinpath(PACKAGE, "..", "..", "tests", "bindings", "mlp_losses.json"), String))["losses"]
const losses = Dict{String,Vector{Float64}}()

for ranks in (1, 2)
    testcase("digits with $ranks rank(s), whole and layer by layer") do
        digits = get(ENV, "MEGADP_DIGITS", "")
        isfile(digits) || return Skipped("no digits (scripts/setup_python makes build/bindings/digits.csv)")
        outcome = run_ranks(ranks, "mlp.jl", digits)
        @test succeeded(outcome)
        for how in ("plain", "overlapped")
            found = said(outcome, how)
            @test length(found) == ranks && all(==(found[1]), found) && length(found[1]) == length(reference)
            off = maximum(abs.(found[1] .- reference))
            @test off < 1e-4
            losses["$ranks $how"] = found[1]
            println("losses with $ranks rank(s), $how: first $(found[1][1]), last $(found[1][end]), off by $(round(off; sigdigits = 2))")
        end
    end
end

testcase("1 and 2 ranks have the same losses") do
    isempty(losses) && return Skipped("no digits")
    for how in ("1 overlapped", "2 plain", "2 overlapped")
        @test maximum(abs.(losses["1 plain"] .- losses[how])) < 1e-6
    end
end

testcase("a killed peer is named") do
    outcome = run_ranks(2, "killed_peer.jl")
    @test outcome.status == 128 + 9
    @test said(outcome, "problem")[1][1:2] == ["PEER", 1] && occursin("rank 1", said(outcome, "problem")[1][3])
    @test said(outcome, "again") == [["PEER", 1]] && said(outcome, "lost") == [["PEER", 1]]
    @test said(outcome, "saved")[1] < 1000
end

testcase("collectives, trees, differences and an interrupt between two ranks") do
    flag = tempname()
    outcome = run_ranks(2, "collectives.jl", flag)
    rm(flag; force = true)
    @test succeeded(outcome)
    for (name, expected) in (("sum", [[3, 20], [3, 20]]), ("mean", [[0.5, 1], [0.5, 1]]), ("later", [1, 1]), ("gathered", [[0, 1], [0, 1]]),
                             ("scattered", [[2], [4]]), ("exchanged", [[0, 10], [1, 11]]), ("broadcast", [[1], [1]]), ("parts", [1, 1]),
                             ("synchronized", [[2, 1, 1, 2], [2, 1, 1, 2]]), ("reduced", [[0.5, 2, 2], [0.5, 2, 2]]),
                             ("part", [[1, 2], [3, 4, 5]]), ("even", [[1, 2], [3, 4]]), ("interrupted", [1]), ("after", [1, 1]),
                             ("missing", [["STATE", 1, 2, "'b'"], ["STATE", 1, 2, "'b'"]]),
                             ("different", [["DESYNC", "both"], ["DESYNC", "both"]]))
        @test (name, said(outcome, name)) == (name, expected)
    end
end
