# SPDX-License-Identifier: Apache-2.0
# What is wrong is said in words, by the language's own means, and nothing else happens.

testcase("a bad argument is named, with its value") do
    @test occursin("backend is :gpu", caught(() -> Comm(backend = :gpu)).text)
    @test occursin("timeout is -1", caught(() -> Comm(timeout = -1)).text)
    @test occursin("128", caught(() -> Comm(id = UInt8[1, 2])).text)
    problem = caught(() -> Comm(device = 3, backend = :host))
    @test problem.kind == :INVALID && problem.code == Raw.MDP_E_INVALID && occursin("device", problem.text)
    problem = caught(() -> Buffer(world, [Param("w", (2,)), Param("w", (3,))]))
    @test problem.kind == :INVALID && problem.param == 2 && occursin("'w'", problem.text)
    @test caught(() -> Buffer(world, [Param("w", (2,); dtype = Int8)])).param == 1
    @test caught(() -> Buffer(world, [Param("w\0", (2,))])).param == 1
    @test occursin("shard_dim", caught(() -> Buffer(world, [Param("w", (2,); shard_dim = 3)])).text)
    @test occursin("order", caught(() -> Grid(world; order = "tp-tp")).text)
    @test occursin("axis is :xp", caught(() -> coordinates(Grid(world), :xp)).text)
    @test coordinates(Grid(world), (:dp, :tp)) == (0, 1)
    big = [Param("w", (2^50,))]  # which no machine has
    for (keywords, told) in ((NamedTuple(), "MDP_BUFFER_IGNORE_MEMORY"), ((ignore_memory = true,), "cannot map"))
        problem = caught(() -> Buffer(world, big; keywords...))
        @test problem.kind == :MEMORY && occursin(told, problem.text)
    end
    buffer = Buffer(world, [Param("w", (2, 3))])
    @test caught(() -> put!(buffer, 1, ones(3, 2))).param == 1
    @test occursin("param is 2", caught(() -> put!(buffer, 2, ones(3, 2))).text)
    @test occursin("name is 'v'", caught(() -> put!(buffer, "v", ones(2, 3))).text)
    @test occursin("rank is 1", caught(() -> world_rank(world, 1)).text) && world_rank(world) == 0
    @test occursin("lr", caught(() -> MegaDP.Optimizer(buffer; lr = -1.0)).text)
    @test occursin("eps is 0", caught(() -> MegaDP.Optimizer(buffer; eps = 0)).text)
    @test_throws MethodError MegaDP.Optimizer(buffer; param_groups = [(weight_decoy = 0.1,)])
    @test occursin("(INVALID)", sprint(showerror, caught(() -> MegaDP.Optimizer(buffer; eps = -1.0))))
    close(buffer)
end

testcase("a parameter without a gradient is named, and the next step can begin") do
    dp = DataParallel(world, (first = (w = ones(Float32, 2, 2),), second = (w = ones(Float32, 2), b = zeros(Float32, 2))))
    all_of_them = (first = (w = ones(2, 2),), second = (w = ones(2), b = ones(2)))
    for grads in ((first = (w = ones(2, 2),), second = (w = ones(2), b = nothing)), (first = (w = ones(2, 2),), second = (w = ones(2),)))
        problem = caught(() -> step!(dp, grads))
        @test problem.kind == :STATE && problem.param == 3 && problem.rank == 0 && occursin("parameter 3 'second.b'", problem.text)
        @test occursin("choose another missing", problem.text)
        @test all(==(1), dp.model.first.w)
        @test step!(dp, all_of_them).step isa Int
        foreach(layer -> foreach(array -> fill!(array, 1), layer), dp.model)
        changed!(dp.buffer)
    end
    problem = caught(() -> step!(dp, (first = (w = fill(NaN, 2, 2),), second = all_of_them.second)))
    @test problem.kind == :NUMERIC && problem.param == 1
    @test step!(dp, all_of_them).step == 3
    close(dp)
    lenient = DataParallel(world, (a = ones(Float32, 2), b = ones(Float32, 2)); missing = :skip, lr = 0.1)
    step!(lenient, (a = ones(2),))
    @test lenient.model.b == [1, 1] && lenient.model.a ≈ [0.9, 0.9]
    close(lenient)
end

testcase("use after close is an error, and closing twice is none") do
    comm = Comm()
    buffer = Buffer(comm, [Param("w", (2,))])
    optimizer = MegaDP.Optimizer(buffer)
    grid = Grid(comm)
    dp = DataParallel(comm, (w = ones(Float32, 2),))
    for handle in (optimizer, buffer, grid, comm, dp)
        close(handle)
        close(handle)
    end
    for use in (() -> step!(optimizer), () -> sync!(buffer), () -> put!(buffer, 1, ones(2)), () -> param_view(buffer, 1),
                () -> coordinates(grid, :dp), () -> local_rank(comm), () -> allreduce!(comm, ones(2)), () -> step!(dp, (w = ones(2),)),
                () -> wait(buffer), () -> barrier(comm), () -> bcast!(buffer), () -> bucket_count(buffer), () -> wait(buffer, "w"),
                () -> world_rank(comm, 0), () -> Buffer(comm, [Param("w", (2,))]), () -> Buffer(grid, [Param("w", (2,))]), () -> MegaDP.state(optimizer, 1, :exp_avg))
        problem = caught(use)
        @test problem.kind == :STATE && occursin("closed", problem.text)
    end
    @test !isopen(comm) && all(closed -> occursin("closed", sprint(show, closed)), (comm, buffer, dp))
    @test Comm(local_rank) == 0
end

testcase("an aborted communicator stays lost, and says so") do
    comm = Comm()
    @test lost(comm) === nothing
    abort(comm)
    problem = caught(() -> barrier(comm))
    @test problem.kind == :ABORTED && problem.rank == 0
    @test lost(comm).kind == :ABORTED && !isempty(lost(comm).text)
    close(comm)
end

testcase("an id makes a world, and is no secret twice") do
    id = unique_id()
    @test id != unique_id() && length(id) == 128
    @test Comm(total_workers; id = id, size = 1) == 1
    @test read_json(MegaDP.info())["version"] isa String
end

testcase("the library's names for a step's calls, and for settings, are said in Julia's words") do
    dp = DataParallel(world, (w = ones(Float32, 2),); rule = :caller, state = (:m,))
    @test_throws DivideError step!(piece -> 1 ÷ 0, dp, (w = ones(2),))
    problem = caught(() -> step!(piece -> nothing, dp, (w = ones(2),)))
    @test problem.kind == :STATE && occursin("set_steps!", problem.text) && !occursin("mdp_", problem.text)
    set_steps!(dp.optimizer, 0)
    @test step!(piece -> nothing, dp, (w = ones(2),)).step == 1
    close(dp)
    text = caught(() -> save_checkpoint(tempname(); tensors = Dict("a" => [1.0]))).text
    @test occursin("at least one Optimizer, Buffer or DataParallel", text) && !occursin("config", text)
end
