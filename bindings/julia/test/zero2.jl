# SPDX-License-Identifier: Apache-2.0
# Gradients that pass through a pool, and memory that is lent for them, in a world of one rank.

testcase("what acquire_grad lends is a gradient, whatever is sharded") do
    for sharding in (:zero0, :zero1, :zero2), row_major in (false, true)
        buffer = Buffer(world, [Param("tied", (2, 3); uses = 2), Param("b", (3,)), Param("still", (4,); frozen = true)];
                        sharding = sharding, row_major = row_major)
        array, first = acquire_grad(buffer, 2)
        @test first && size(array) == (3,) && eltype(array) == Float32
        array .= 99
        for refused in (() -> put!(buffer, 2, ones(3)), () -> skip!(buffer, "b"), () -> acquire_grad(buffer, "b"),
                        () -> microbatch!(buffer; last = true))
            problem = caught(refused)
            @test problem.kind == :STATE && occursin("is lent", problem.text)
        end
        release_grad!(buffer, "b")
        @test caught(() -> release_grad!(buffer, 2)).kind == :STATE
        put!(buffer, 2, [0, 3, 4.0])
        values = Float32[1 2 3; 4 5 6]
        firsts = Bool[]
        for _ in 1:2
            acquire_grad(buffer, "tied") do array, first
                push!(firsts, first)
                first ? copyto!(array, values) : (array .+= 10values)
            end
        end
        @test firsts == [true, false]
        @test caught(() -> acquire_grad(buffer, 3)).kind == :STATE  # frozen
        @test caught(() -> owned_grad(buffer, 1)).kind == :STATE    # not reduced
        sync!(buffer)
        @test owned_grad(buffer, 1) == vec(row_major ? permutedims(11values) : 11values) && owned_grad(buffer, "b") == [0, 3, 4]
        copyto!(owned_grad(buffer, 2), [6, 0, 8])
        grads_changed!(buffer)
        @test grad_norm(buffer; params = ["b"]) == 10
        scale_grads!(buffer, 0.5)
        @test owned_grad(buffer, 2) == [3, 0, 4]
        @test caught(() -> acquire_grad(buffer, 2)).kind == :STATE  # it is reduced
        if sharding == :zero2
            problem = caught(() -> grad_view(buffer, 1))
            @test problem.kind == :UNSUPPORTED && occursin("mdp_grad_acquire", problem.text)
        end
        close(buffer)
    end
end

testcase("what a function writes is given back where it throws, and what is lent outlives a close") do
    buffer = Buffer(world, [Param("w", (100,))]; sharding = :zero2)
    @test_throws ErrorException acquire_grad((array, first) -> error("no gradient"), buffer, 1)
    array, first = acquire_grad(buffer, 1)
    @test first
    fill!(array, 7)
    close(buffer)
    buffer = nothing
    GC.gc(); GC.gc()
    @test sum(array) == 700
end

testcase("zero2: gradients of half width and several uses are lent in Float32, and rounded once") do
    buffer = Buffer(world, [Param("once", (2,); dtype = Float16), Param("tied", (2,); dtype = Float16, uses = 2),
                            Param("brain", (2,); dtype = :bf16)];
                    sharding = :zero2, grad_dtype = :same)
    isdefined(Core, :BFloat16) || @test caught(() -> acquire_grad(buffer, 3)).kind == :UNSUPPORTED
    put!(buffer, 3, [1.0, 2])  # what could not be shown is not lent
    for expected in (true, false)
        acquire_grad(buffer, 2) do array, first
            @test eltype(array) == Float32 && first == expected
            first ? (array .= 0.5f0) : (array .+= 1)
        end
    end
    acquire_grad((array, _) -> (@test(array isa Vector{Float16}); array .= 2), buffer, 1)
    sync!(buffer)
    @test owned_grad(buffer, 1)::Vector{Float32} == [2, 2] && owned_grad(buffer, 2) == [1.5, 1.5] && owned_grad(buffer, 3) == [1, 2]
    close(buffer)
end

testcase("zero2: what lies outside the pool is counted and limited") do
    buffer = Buffer(world, [Param("p$i", (100,)) for i in 1:3]; sharding = :zero2, bucket_elements = 1, pool_buckets = 1, spill_limit = 500)
    put!(buffer, 1, ones(100))
    problem = caught(() -> put!(buffer, 2, ones(100)))
    @test problem.kind == :MEMORY && occursin("spill_limit is 500", problem.text)
    @test caught(() -> put!(buffer, 3, ones(100); add = true)).kind == :UNSUPPORTED
    put!(buffer, 3, ones(100))
    while true  # until the bucket before has been reduced
        try
            put!(buffer, 2, ones(100))
            break
        catch problem
            problem.kind == :MEMORY || rethrow()
        end
    end
    sync!(buffer)
    @test 400 <= stats(buffer).spill_peak_bytes <= 500
    close(buffer)
    for (keywords, told) in (((pool_buckets = 2,), "pool_buckets is 2"), ((spill_limit = 7,), "spill_limit is 7"))
        problem = caught(() -> Buffer(world, [Param("w", (2,))]; keywords...))
        @test problem.kind == :INVALID && occursin(told, problem.text)
    end
    @test occursin("sharding is :zero3", caught(() -> Buffer(world, [Param("w", (2,))]; sharding = :zero3)).text)
end

testcase("zero2: a layer that ran more often forward than backward") do
    for sharding in (:zero1, :zero2)
        dp = DataParallel(world, (w = ones(Float32, 2), b = ones(Float32, 2)); sharding = sharding)
        MegaDP.forward_begins((dp.model.w,))
        MegaDP.forward_begins((dp.model.w,))
        MegaDP.backward_ends((dp.model.w,), (Float32[0, 5],))
        @test step!(dp, (w = nothing, b = Float32[12, 0])).grad_norm ≈ 13
        close(dp)
    end
end

testcase("gradients are divided by the step's tokens, and by what a step is told") do
    for (scaling, norm) in ((:tokens, 1.5), (:sum, 6), (:mean, 6)), dtype in (Float32, :bf16)
        buffer = Buffer(world, [Param("w", (4,); dtype = dtype, tie = "words")]; scaling = scaling, grad_dtype = :same)
        optimizer = Optimizer(buffer)
        told = scaling == :tokens ? tokens!(buffer, 4) : caught(() -> tokens!(buffer, 4)).kind
        @test told === (scaling == :tokens ? nothing : :STATE)
        @test caught(() -> tokens!(buffer, NaN)).kind == :INVALID
        put!(buffer, 1, fill(6.0f0, 4))
        @test step!(optimizer; grad_divisor = 2).grad_norm ≈ norm
        @test caught(() -> step!(optimizer; grad_divisor = -1)).kind == :INVALID
        close(buffer)
    end
    problem = caught(() -> Buffer(world, [Param("a", (4,); tie = "words"), Param("b", (4,); tie = "words")]))
    @test problem.kind == :INVALID && occursin("same tie", problem.text)
    @test occursin("NUL", caught(() -> Buffer(world, [Param("a", (4,); tie = "w\0")])).text)
end

testcase("gradients are checked") do
    for checked in (false, true)
        dp = DataParallel(world, (w = ones(Float32, 2), b = ones(Float32, 3)); check_finite = checked)
        bad = (w = ones(2), b = [1, 1, NaN])
        @test step!(dp, bad; loss_scale = 2).skipped
        problem = caught(() -> step!(dp, bad))
        @test problem.kind == :NUMERIC && problem.param == 2 && occursin("'b'", problem.text)
        put!(dp, bad)
        if checked
            problem = caught(() -> sync!(dp.buffer))
            @test problem.kind == :NUMERIC && problem.param == 2 && problem.rank == 0 && occursin("'b'", problem.text)
            @test step!(dp.optimizer; loss_scale = 2).skipped
        else
            sync!(dp.buffer)
            microbatch!(dp; last = true)
        end
        @test step!(dp, (w = ones(2), b = ones(3))).step == 1
        close(dp)
    end
    buffer = Buffer(world, [Param("w", (1,))]; check_large = true)
    optimizer = Optimizer(buffer)
    for value in [ones(100); 5; 20]
        put!(buffer, 1, [value])
        step!(optimizer)
    end
    @test stats(buffer).large_gradients == 1
    close(buffer)
end

testcase("buckets fill in the order of use") do
    model = (a = ones(Float32, 8), b = ones(Float32, 8), c = ones(Float32, 8))
    order = nothing
    for attempt in 1:2
        dp = DataParallel(world, model; use_order = order, bucket_elements = 1)
        @test caught(() -> use_order(dp.buffer)).kind == :STATE
        foreach(i -> put!(dp.buffer, i, ones(8)), (attempt == 1 ? ("b", "a", "c") : (2, 1, 3)))
        sync!(dp.buffer)
        order = use_order(dp.buffer)
        @test order == [1, 2, 0]
        @test issorted([bucket(dp.buffer, k).ready_ns for k in 1:bucket_count(dp.buffer)]) == (attempt == 2)
        microbatch!(dp; last = true)
        @test step!(dp, (a = ones(8), b = ones(8), c = ones(8))).step == 1
        @test use_order(dp.buffer) == (attempt == 1 ? [0, 1, 2] : [1, 2, 0])
        close(dp)
    end
    problem = caught(() -> DataParallel(world, model; use_order = [1]))
    @test problem.kind == :INVALID && occursin("use_order has 1 entries", problem.text)
    problem = caught(() -> Buffer(world, [Param("w", (4,); use_order = 2^31)]))
    @test problem.kind == :INVALID && problem.param == 1 && occursin("use_order", problem.text)
end

testcase("state as bf16, without masters, by a seed") do
    function steps(seed)
        buffer = Buffer(world, [Param("w", (64,); dtype = :bf16)])
        optimizer = Optimizer(buffer; state_dtype = :bf16, stochastic_state = true, no_master = true, seed = seed)
        for _ in 1:20
            put!(buffer, 1, collect(Float32, 1:64))
            step!(optimizer)
        end
        @test caught(() -> MegaDP.state(optimizer, 1, :master)).kind == :INVALID
        @test occursin("\"no_master\":true,\"seed\":$seed,\"state\":[{\"name\":\"exp_avg\",\"dtype\":\"bf16\"}", MegaDP.info(optimizer))
        if isdefined(Core, :BFloat16)
            @test eltype(MegaDP.state(optimizer, 1, :exp_avg)) == Core.BFloat16
        else
            @test caught(() -> MegaDP.state(optimizer, 1, :exp_avg)).kind == :UNSUPPORTED
        end
        values = zeros(Float32, 64)
        read!(buffer, 1, values)
        return values
    end
    @test steps(typemax(UInt64)) == steps(typemax(UInt64)) != steps(3)
    buffer = Buffer(world, [Param("w", (4,))])
    @test caught(() -> Optimizer(buffer; state_dtype = :f16)).kind == :INVALID
    @test occursin("config.seed is 1", caught(() -> Optimizer(buffer; seed = 1)).text)
end

testcase("norms and zeros of sets of gradients, and ways of clipping") do
    for (options, norm, factor, seen) in (((norm = :inf, max_grad_norm = 3), 12, 0.25, [0.75, -1, 0]), ((max_grad_value = 3,), 13, 1, [3, -3, 0]))
        buffer = Buffer(world, [Param("a", (3,)), Param("b", (2,)), Param("c", (2,))])
        optimizer = Optimizer(buffer; options...)
        for (i, values) in ((3, [0, 0]), (2, [12, 0]), (1, [3, -4, 0]))
            put!(buffer, i, Float32.(values))
        end
        sync!(buffer)
        first, second = grad_summaries(buffer, [1, 2, nothing]; count = 2)
        @test (first, second) == ((norm = 5, inf_norm = 4, zeros = 1, nonfinite = 0), (norm = 12, inf_norm = 12, zeros = 1, nonfinite = 0))
        @test only(grad_summaries(buffer)).zeros == 4
        @test all(wrong -> caught(wrong).kind == :INVALID, (() -> grad_summaries(buffer, [1, 3, 1]; count = 2), () -> grad_summaries(buffer, [1]),
                                                             () -> grad_summaries(buffer; count = 0)))
        report = step!(optimizer)
        @test report.grad_norm ≈ norm && isapprox(report.clip_factor, factor; atol = 1e-6)
        @test isapprox(10 * MegaDP.state(optimizer, 1, :exp_avg), seen; atol = 1e-4)
        close(buffer)
    end
end
