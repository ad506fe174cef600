# SPDX-License-Identifier: Apache-2.0
# Ranks that meet by a function which gathers bytes.

testcase("workers of Distributed meet by its channels") do
    example = joinpath(PACKAGE, "examples", "distributed.jl")
    output = read(`$(julia_command()) -O0 $example 3`, String)
    @test split(strip(output), "\n") == ["rank $rank of 3, sum 3.0" for rank in 0:2]
end

# The other rank never comes.
refused(gather; timeout = 60) = caught(() -> Comm(; bootstrap = gather, rank = 0, size = 2, timeout = timeout, backend = :host))

testcase("a bootstrap that throws, or returns what it must not, fails the Comm") do
    for gather in (bytes -> error("no store"), bytes -> [bytes], bytes -> [bytes, bytes[2:end]], bytes -> nothing)
        @test_logs (:error, "the bootstrap failed") (@test refused(gather).code == MegaDP.Raw.MDP_E_BACKEND)
    end
    @test refused(bytes -> [bytes, bytes]).code == MegaDP.Raw.MDP_E_INVALID  # nobody else's
end

testcase("a Ctrl-C that comes while a bootstrap runs is one") do
    @test_throws InterruptException refused(bytes -> throw(InterruptException()))
end

testcase("the timeout holds while a bootstrap blocks") do
    begun = time()
    @test refused(bytes -> wait(Condition()); timeout = 0.5).code == MegaDP.Raw.MDP_E_TIMEOUT
    @test time() - begun < 60
end

testcase("a bootstrap and an id, or no number of ranks, are refused") do
    @test caught(() -> Comm(; bootstrap = bytes -> [bytes], id = unique_id(), size = 1)).code == MegaDP.Raw.MDP_E_INVALID
    @test caught(() -> Comm(; bootstrap = bytes -> [bytes])).code == MegaDP.Raw.MDP_E_INVALID
end
