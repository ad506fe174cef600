# SPDX-License-Identifier: Apache-2.0
# Updates of the caller's in a world of one rank; programs/pieces.jl has those of several.

testcase("AdamW as a function is its formula bit by bit, with the optimizer's values and a group's") do
    buffer = two_groups(world)
    values = (rule = :caller, state = (:exp_avg, :exp_avg_sq))
    optimizer = Optimizer(buffer; values..., said_of(:adamw, FIRST)..., param_groups = [NamedTuple(), said_of(:adamw, SECOND)])
    for t in 1:TRAINED
        put_gradients(buffer, t)
        pieces = []
        @test step!(piece -> (adamw!(piece); push!(pieces, (piece.param, piece.range, piece.step, piece.lr))), optimizer).step == t
        @test sort!(pieces) == [(1, 1:ELEMENTS, t, FIRST.lr), (2, 1:ELEMENTS, t, SECOND.lr)]
    end
    check_rule(optimizer, :adamw, FIRST, 1)
    check_rule(optimizer, :adamw, SECOND, 2)
    close(buffer)
end

testcase("a model whose parameters a function updates, with another optimizer beside") do
    model = (w = ones(Float32, 2), table = ones(Float32, 2))
    dp = DataParallel(world, model; param_group = name -> name == "table" ? 2 : 1, first_param_group = 1, rule = :caller, lr = 0.25)
    lion = Optimizer(dp.buffer; rule = :lion, lr = 0.125, first_param_group = 2)
    step!(dp, (w = fill(3.0, 2), table = fill(3.0, 2)); others = [lion]) do piece
        @test piece.optimizer == 1 && piece.state == NamedTuple() && piece.betas == (0.9, 0.999) && piece.momentum == 0.9
        piece.master .-= Float32(piece.lr) .* piece.grad
    end
    @test dp.model.w == fill(0.25, 2) && dp.model.table == fill(0.875, 2)
    grads = (w = ones(2), table = ones(2))
    @test_throws DomainError step!(piece -> throw(DomainError(1)), dp, grads; others = [lion])
    @test occursin("are not whole", caught(() -> step!(identity, dp, grads; others = [lion])).text)
    set_steps!(dp.optimizer, 1)
    @test step!(identity, dp, grads; others = [lion], report = false) === nothing
    @test MegaDP.steps(dp.optimizer, 1) == 2
    close(dp)
end

testcase("an update that needs all of a parameter is found out") do
    buffer = Buffer(world, [Param("w", (8,))])
    optimizer = Optimizer(buffer; rule = :caller, check_update = true)
    put!(buffer, 1, Float32[1:8;])
    lengths = Int[]
    step!(piece -> (push!(lengths, length(piece.grad)); piece.master .-= piece.grad), optimizer)
    @test lengths == [8, 4, 4]
    put!(buffer, 1, Float32[1:8;])
    failed = caught(() -> step!(piece -> piece.master .-= sum(piece.grad), optimizer))
    @test failed.kind == :INVALID && occursin("not element-wise", failed.text)
    close(buffer)
end

testcase("a skipped step has no pieces, and a parameter that all ranks skip none") do
    buffer = Buffer(world, [Param("w", (3,)), Param("v", (3,))])
    optimizer = Optimizer(buffer; rule = :caller)
    put!(buffer, 1, fill(NaN32, 3))
    skip!(buffer, 2)
    @test step!(_ -> error("called"), optimizer; loss_scale = 2).skipped
    put!(buffer, 1, ones(Float32, 3))
    skip!(buffer, 2)
    seen = []
    step!(piece -> push!(seen, (piece.param, piece.step)), optimizer)
    @test seen == [(1, 1)]
    close(buffer)
end

testcase("while a function updates, other tasks run, and what a piece lent keeps its memory") do
    buffer = Buffer(world, [Param("w", (1000,))])
    optimizer = Optimizer(buffer; rule = :caller, state = [:sum])
    put!(buffer, 1, ones(Float32, 1000))
    ran, kept = Ref(false), Ref{Any}(nothing)
    step!(optimizer) do piece
        wait(@async ran[] = true)
        @test caught(() -> put!(buffer, 1, ones(Float32, 1000))).kind == :STATE  # the gradients are the step's
        piece.state.sum .= 2
        kept[] = piece
    end
    @test ran[]
    close(optimizer)
    close(buffer)
    optimizer = buffer = nothing
    GC.gc(); GC.gc()
    @test all(==(2), kept[].state.sum) && all(==(0), kept[].master) && length(kept[].grad) == 1000
end

testcase("bytes of whole parameters are refused where they do not fit, and else are the optimizer's") do
    buffer = Buffer(world, [Param("w", (3,); sharding = :whole), Param("v", (3,); sharding = :whole)])
    for (told, keywords) in (("gives rows 1 numbers of bytes; there are 2", (param_states = (rows = [8],),)), ("rows -1 bytes of \"v\"", (param_states = (rows = Dict("v" => -1),),)),
                             ("with a NUL", (param_states = Dict("a\0" => [8, 8]),)), ("'u'", (param_states = (rows = Dict("u" => 8),),)),
                             ("param is 3", (param_states = (rows = Dict(3 => 8),),)), ("'sum' twice", (param_states = (sum = [8, 8],), state = [:sum])),
                             ("of the caller's rule", (rule = :lion, param_states = (rows = [8, 8],))),
                             ("cuts parameters in two", (check_update = true, param_states = (rows = [8, 8],))))
        problem = caught(() -> Optimizer(buffer; rule = :caller, keywords...))
        @test (told, problem.kind, occursin(told, problem.text)) == (told, :INVALID, true)
    end
    optimizer = Optimizer(buffer; rule = :caller, param_states = (rows = [16, 0], ids = Dict(2 => 3)))
    @test MegaDP.state(optimizer, "w", :rows) == zeros(UInt8, 16) && MegaDP.state(optimizer, "v", :rows) == [] && length(MegaDP.state(optimizer, 2, :ids)) == 3
    foreach(param -> put!(buffer, param, ones(Float32, 3)), 1:2)
    kept = Ref{Any}(nothing)
    step!(optimizer) do piece
        @test map(length, piece.param_states) == (piece.param == 1 ? (rows = 16, ids = 0) : (rows = 0, ids = 3))
        piece.param == 1 && (reinterpret(Float32, piece.param_states.rows) .= 1:4; kept[] = piece.param_states.rows)
    end
    @test reinterpret(Float32, MegaDP.state(optimizer, 1, :rows)) == 1:4
    close(optimizer)
    close(buffer)
    optimizer = buffer = nothing
    GC.gc(); GC.gc()
    @test reinterpret(Float32, kept[]) == 1:4
end

testcase("what does not fit an update by a function is refused") do
    buffer = Buffer(world, [Param("w", (3,))])
    for (told, keywords) in (("state has the name \"\"", (state = ["a", ""],)), ("a\\nb", (state = ["a\nb"],)), ("'a b'", (state = ["a b"],)),
                             ("'master'", (state = [:master],)), ("twice", (state = [:a, :a],)), ("names 5 arrays", (state = [:a, :b, :c, :d, :e],)),
                             ("AdamW has its own", (rule = :adamw, state = [:a])))
        problem = caught(() -> Optimizer(buffer; rule = :caller, keywords...))
        @test problem.kind == :INVALID && occursin(told, problem.text)
    end
    optimizer = Optimizer(buffer; rule = :caller, state = [:mine])
    put!(buffer, 1, ones(Float32, 3))
    problem = caught(() -> step!(optimizer))
    @test problem.kind == :STATE && occursin("take the function that updates", problem.text)
    @test occursin("name is :exp", caught(() -> MegaDP.state(optimizer, 1, :exp)).text)
    @test occursin("give at least one", caught(() -> step_many!(identity, [])).text)
    @test caught(() -> step!(identity, optimizer; lr = -1)).kind == :INVALID
    @test step!(identity, optimizer; lr = 0.5).step == 1 && MegaDP.state(optimizer, 1, :mine) == [0, 0, 0]
    close(optimizer)
    @test caught(() -> step!(identity, optimizer)).kind == :STATE
    close(buffer)
end
