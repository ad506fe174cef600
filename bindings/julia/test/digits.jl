# SPDX-License-Identifier: Apache-2.0
# The model that every binding trains, with 1 and 2 ranks, beside its reference.

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
