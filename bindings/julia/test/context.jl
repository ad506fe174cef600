# SPDX-License-Identifier: Apache-2.0
# Attention over a sequence that is cut over ranks, with the rule for ADs against a STAND-IN for ChainRulesCore. A group of its own for the time it takes.

testcase("stand-in ChainRulesCore: attention on one to three ranks is that of the whole sequence, forward and backward") do
    for ranks in 1:3
        outcome = run_ranks(ranks, "context_parallel.jl")
        @test succeeded(outcome)
        @test (ranks, said(outcome, "equal")) == (ranks, fill(true, ranks))
        @test said(outcome, "failed") == [[fill(rank == ranks ? "thrown" : "ABORTED", 2); "nothing"; "nothing"] for rank in 1:ranks]
        @test said(outcome, "refused") == fill(ranks == 1 ? "nothing" : "INVALID", ranks)
    end
end
