# SPDX-License-Identifier: Apache-2.0
# What the collector does, in any order, and what must outlive a close.

"Every communicator tree has threads of its own: they tell what is still there."
threads() = length(readdir("/proc/self/task"))

"A step of a model whose handles nobody closes; the view of its first parameter."
@noinline function abandoned_training()
    comm = Comm()
    part = split(comm, 0)
    dp = DataParallel(part, (w = fill(2.0f0, 300, 300), b = zeros(Float32, 300)); lr = 0.0)
    step!(dp, (w = ones(Float32, 300, 300), b = ones(Float32, 300)))
    moments = MegaDP.state(dp.optimizer, 1, :exp_avg)
    allreduce!(comm, ones(Float32, 10); async = true)  # and a request that nobody waits for
    return dp.model.w, moments
end

"Four of them, whose views are all that is left, while the collector is at work. In a function, so that no variable stays about."
@noinline function views_of_abandoned_trainings(before)
    kept = [abandoned_training() for _ in 1:4]
    @test threads() > before
    for _ in 1:3
        GC.gc()
        ones(1000, 1000)
    end
    @test all(pair -> all(==(2), pair[1]) && all(≈(0.1f0), pair[2]), kept)
    return nothing
end

testcase("finalizers drop what nobody closed, in any order, and views keep their memory") do
    before = threads()
    views_of_abandoned_trainings(before)
    # Requests hold what they came from until a later one looks; a thread of the library ends when it is done.
    for _ in 1:200
        allreduce!(world, ones(1))
        GC.gc()
        threads() <= before && break
        sleep(0.05)
    end
    @test threads() <= before
end

testcase("views outlive a close, also of the optimizer") do
    dp = DataParallel(world, (w = fill(3.0f0, 100, 100),))
    put!(dp, (w = ones(Float32, 100, 100),))
    gradient, moments = grad_view(dp.buffer, 1), MegaDP.state(dp.optimizer, 1, :exp_avg_sq)
    close(dp)
    GC.gc()
    @test all(==(3), dp.model.w) && all(==(1), gradient) && all(==(0), moments)
    column = view(dp.model.w, :, 2)
    flat = reshape(dp.model.w, 10_000)
    dp = nothing
    GC.gc(); GC.gc()
    @test all(==(3), column) && sum(flat) == 30_000
end

testcase("a view that is refused keeps no memory") do
    isdefined(Core, :BFloat16) && return  # then none is
    mapped() = parse(Int, match(r"VmSize:\s*(\d+) kB", read("/proc/self/status", String))[1]) ÷ 1024
    function refused()
        buffer = Buffer(world, [Param("brain", (16 << 20,); dtype = :bf16)])
        @test caught(() -> param_view(buffer, 1)).kind == :UNSUPPORTED
        close(buffer)
        GC.gc()
        return mapped()
    end
    before = refused()
    @test last([refused() for _ in 1:4]) < before + 192  # each has 96; a thread of the library may take 64
end

"A layer with a communicator in it."
struct Held{C,W}
    comm::C
    w::W
end
MegaDP.parts(x::Held) = ((w = x.w,), children -> Held(x.comm, children.w))

testcase("a copy of a model is in memory of its own, and what is trained cannot be copied") do
    for row_major in (false, true)
        dp = DataParallel(world, (a = (w = Float32[1 2; 3 4],), held = Held(world, overlap((w = ones(Float32, 2),)))); rule = :sgd, lr = 1.0, row_major = row_major)
        copied = deepcopy(dp.model)
        @test copied.a.w == [1 2; 3 4] && !MegaDP.isowned(copied.a.w) && copied.held.comm === world
        step!(dp, (a = (w = ones(2, 2),), held = (w = (layer = (w = ones(2),),),)))
        copied.held.w.layer.w .= 7
        @test copied.a.w == [1 2; 3 4] && dp.model.a.w == [0 1; 2 3] && dp.model.held.w.layer.w == [0, 0]
        MegaDP.forward_begins(copied.held.w.layer)  # its layers are nobody's parameters
        @test all(==(0), dp.expected)
        for trained in (dp, dp.buffer, dp.optimizer, (inside = [dp],))
            problem = caught(() -> deepcopy(trained))
            @test problem.kind == :UNSUPPORTED && occursin("cannot be copied", problem.text) && occursin("deepcopy(dp.model)", problem.text)
        end
        close(dp)
        @test copied.a.w == [1 2; 3 4]
    end
    request = allreduce!(world, ones(2); async = true)
    grid, layer = Grid(world), TpLinear(world, :column, 4 => 8)
    @test deepcopy([world, grid, request, layer]) == [world, grid, request, layer]
    buffer = Buffer(grid, [Param("w", (8, 4); placement = :sharded, shard_dim = 1)])
    @test occursin("TpLinear cannot be copied", caught(() -> deepcopy(TpLinear(world, :column, 4 => 8; buffer = buffer, weight = 1, bias = false))).text)
    foreach(close, (buffer, layer, grid))
    wait(request)
end

testcase("finalizers may run in the middle of anything") do
    for round in 1:30
        buffer = Buffer(world, [Param("w", (10,))])
        for _ in 1:round % 4
            Buffer(world, [Param("other", (5,))])  # garbage at once
        end
        put!(buffer, 1, ones(10))
        round % 3 == 0 && GC.gc(false)
        sync!(buffer)
        problem = caught() do
            GC.gc(false)
            put!(buffer, 1, ones(10))  # after the sync: the error's text must not be a finalizer's
        end
        @test problem.kind == :STATE && problem.param == 1
    end
end
