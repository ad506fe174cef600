# SPDX-License-Identifier: Apache-2.0
# Two ranks, as processes of `megadp run`: what they share, and what they tell each other when something is wrong.

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
                             ("scattered", [[2], [4]]), ("exchanged", [[0, 10], [1, 11]]), ("broadcast", [[1], [1]]), ("parts", [1, 1]), ("world", [[0, 0, 1, 0], [1, 1, 1, 0]]),
                             ("ragged", [[0, 1, 1], [0, 1, 1]]), ("summed", [[2], [4, 6]]), ("traded", [[0, 1], [0, 0, 1, 1]]),
                             ("received", [[5]]), ("swapped", [[1], [0]]), ("refused", [["INVALID"], ["INVALID"]]),
                             ("norm", [0.25, 0.25]), ("stepped", [[0.5, 1], [0.5, 1]]), ("tasks", [1, 1]),
                             ("synchronized", [[2, 1, 1, 2, 4, 1], [2, 1, 1, 2, 4, 1]]), ("reduced", [[0.5, 2, 2], [0.5, 2, 2]]),
                             ("trees differ", fill(1, 12)), ("trees agree", [[2], [2]]),
                             ("ranges", fill([1, 2, 3, 1, 1.25, 1.5, 1, 1, 1], 2)), ("big", ["INVALID", "INVALID"]),
                             ("part", [[1, 2], [3, 4, 5]]), ("even", [[1, 2], [3, 4]]), ("interrupted", [1]), ("after", [1, 1]),
                             ("missing", [["STATE", 1, 2, "'b'"], ["STATE", 1, 2, "'b'"]]),
                             ("rounded", [2.0078125, 2.0078125]), ("fed back", [[2, 2.015625], [2, 2.015625]]),
                             ("checked", [["NUMERIC", 1, 2, "'b'"], ["NUMERIC", 1, 2, "'b'"]]), ("passed over", [1, 1]),
                             ("different", [["DESYNC", "both"], ["DESYNC", "both"]]))
        @test (name, said(outcome, name)) == (name, expected)
    end
end

testcase("two ranks: one that comes late to a collective is waited for, whatever it is") do
    mktempdir() do folder
        outcome = run_ranks(2, "late.jl", folder)
        @test succeeded(outcome)
        @test said(outcome, "failed") == [] && said(outcome, "lost") == [nothing, nothing]
    end
end

testcase("two ranks: zero2 has the bits of zero1, with gradients handed over at the end, layer by layer, and written where they go") do
    outcome = run_ranks(2, "zero2.jl")
    @test succeeded(outcome)
    for name in ("whole", "overlapped", "written")  # with two slots and with one
        @test (name, said(outcome, name)) == (name, [1, 1, 1, 1])
    end
    @test said(outcome, "instances") == [1, 1, 1, 1] && said(outcome, "owned") == [100, 100]  # each instance has all of the state
    @test said(outcome, "microbatches") == [1, 1]
    @test !occursin("came before its turn", outcome.output)  # gradients are handed over in the order in which buckets leave
end

testcase("two ranks: a batch that is given up after some of its gradients have left is in no step") do
    outcome = run_ranks(2, "given_up.jl")
    @test succeeded(outcome)
    @test said(outcome, "together") == fill(-2, 2 * 3 * 6) && said(outcome, "one") == fill(-1, 2 * 6)
    @test said(outcome, "alone") == fill(["STATE", 1], 6) && said(outcome, "stays") == fill(["refused", -1], 2 * 6)
end

testcase("two ranks: a step that another thread's call refuses keeps its gradients, and is taken later") do
    flag = tempname()
    outcome = run_ranks(2, "busy.jl", flag; environment = Dict("JULIA_NUM_THREADS" => "2"))
    @test succeeded(outcome)
    @test said(outcome, "refused") == fill(["STATE", true], 2)
    @test sort(said(outcome, "stepped")) == sort(repeat([[-1, -2, -1, -1], [-3, -6, -2, -2]], 2))
end

testcase("two ranks: arrays saved beside parameters are the same on all, or the one that differs is named") do
    mktempdir() do folder
        outcome = run_ranks(2, "tensors.jl", folder)
        @test succeeded(outcome)
        @test said(outcome, "differ") == fill(["DESYNC", true], 2) && said(outcome, "same") == ["nothing", "nothing"]
    end
end

testcase("two ranks: rules, several optimizers and a scaler") do
    outcome = run_ranks(2, "rules.jl")
    @test succeeded(outcome)
    for (name, expected) in (("together", fill(1, 12)), ("alone", fill(1, 12)), ("scales", fill([1024, 1024, 512, 256, 256, 256, 512, 512], 2)),
                             ("different", ["DESYNC", "DESYNC"]))
        @test (name, said(outcome, name)) == (name, expected)
    end
end

testcase("one to three ranks: updates by a function have the library's bits, and a failure on one rank is everybody's") do
    for ranks in 1:3
        mktempdir() do folder
            outcome = run_ranks(ranks, "pieces.jl", folder)
            @test succeeded(outcome)
            for (name, expected) in (("whole", [1]), ("beside", [1, 1]), ("together", [1, 1]), ("made good", [1]), ("goes on", [21]))
                @test (ranks, name, said(outcome, name)) == (ranks, name, repeat(expected, ranks))
            end
            @test said(outcome, "failed") == [[rank == ranks ? "thrown" : "ABORTED", "STATE", "kept"] for rank in 1:ranks]
        end
    end
end

testcase("three ranks go on with the bits of two, from their checkpoint") do
    mktempdir() do folder
        saved, loaded = run_ranks(2, "checkpoint.jl", folder), run_ranks(3, "checkpoint.jl", folder)
        @test succeeded(saved) && succeeded(loaded)
        for (name, expected) in (("frozen", [1, 2, 3, 4]), ("steps", 2), ("data", "all"))
            @test (name, said(saved, name), said(loaded, name)) == (name, fill(expected, 2), fill(expected, 3))
        end
        for name in ("loaded", "stepped")
            @test said(saved, name)[[1, 1, 2]] == said(loaded, name)
        end
        @test said(saved, "loaded") != said(saved, "stepped")
    end
end

testcase("an interrupt gets into calls that wait in one piece") do
    flag = tempname()
    outcome = run_ranks(2, "interrupted.jl", flag)
    rm(flag; force = true)
    @test succeeded(outcome)
    for name in ("created", "gathered", "waited", "split")
        @test (name, said(outcome, name)) == (name, ["InterruptException"])
    end
    @test said(outcome, "updated") == ["InterruptException", "ABORTED"] && said(outcome, "went on") == [1, 1]
    @test said(outcome, "attended") == ["InterruptException", "ABORTED"] && said(outcome, "attends on") == [true, true]
    @test said(outcome, "lost") == [["ABORTED", 0], ["ABORTED", 0]]
end

testcase("the heat example has the same sum on one, two and four ranks") do
    example = joinpath(PACKAGE, "examples", "heat.jl")
    outcomes = map(ranks -> run_ranks(ranks, example, "23", "17", "40"), (1, 2, 4))
    @test all(succeeded, outcomes)
    @test startswith(outcomes[1].output, "23 x 17 cells, 40 steps: sum ")
    @test outcomes[1].output == outcomes[2].output == outcomes[3].output
end
