# SPDX-License-Identifier: Apache-2.0
# Nested models and gradients, data over ranks, wrapped layers.

testcase("models of tuples, vectors and wrapped layers are found and built again") do
    shared = ones(Float32, 2, 2)
    model = (embed = shared, layers = [(w = ones(Float32, 3),), (w = zeros(Float32, 3),)], head = shared,
             eps = 1.0f-5, steps = [1, 2], act = tanh)
    dp = DataParallel(world, model; lr = 0.0)
    @test [param.name for param in dp.buffer.params] == ["embed", "layers.1.w", "layers.2.w"]
    @test dp.model.embed === dp.model.head && dp.model.embed !== shared && dp.model.embed == shared
    @test dp.model.layers isa Vector && dp.model.act === tanh && dp.model.steps === model.steps
    # Both uses of the tied parameter count; a Vector's gradient may be one of tuples too.
    report = step!(dp, (embed = ones(2, 2), layers = ((w = zeros(3),), (w = zeros(3),)), head = 2 * ones(2, 2)))
    @test report.grad_norm ≈ 6
    @test step!(dp, (embed = ones(2, 2), layers = [(w = zeros(3),), (w = zeros(3),)], head = nothing)).grad_norm ≈ 2
    close(dp)
    @test occursin("no parameters", caught(() -> DataParallel(world, (a = 1,))).text)
    problem = caught(() -> DataParallel(world, (a = (w = ones(2),),)))
    @test problem.kind == :INVALID && occursin("'a.w'", problem.text) && occursin("Float64", problem.text)
end

"The words of the refusal of a gradient of another shape than the model's; nothing of it has been put."
function refusal(dp, grads)
    problem = caught(() -> step!(dp, grads))
    @test (problem.kind, all(==(0), dp.arrived)) == (:INVALID, true)
    return problem.text
end

testcase("a gradient of another shape than the model's is refused, and the place named") do
    model = (enc = (w = ones(Float32, 2, 3), b = ones(Float32, 2)), layers = ((w = ones(Float32, 2),), (w = ones(Float32, 2),)), act = tanh,
             eps = 1.0f-5)
    for missing in (:error, :zero)  # with :zero nothing else would say so
        dp = DataParallel(world, model; lr = 0.0, missing = missing)
        good = (enc = (w = ones(2, 3), b = ones(2)), layers = ((w = ones(2),), (w = ones(2),)), act = nothing, eps = 0.5)
        with(; changes...) = merge(good, (; changes...))
        for (bad, words) in ((with(enc = (weight = ones(2, 3), b = ones(2))), ("enc.weight", "w, b")),
                             (with(encoder = nothing), ("encoder", "enc, layers, act, eps")),
                             (with(layers = ((w = ones(2),),)), ("layers", "1", "2")),
                             (with(layers = [(w = ones(2),) for _ in 1:3]), ("layers", "3", "2")),
                             (with(layers = ones(2, 2)), ("layers", "Array", "1, 2")),
                             (with(layers = ((w = ones(2),), 3.0)), ("layers.2", "Float64")),
                             (with(enc = (w = (parent = ones(3, 2),), b = ones(2))), ("enc.w", "NamedTuple", "(2, 3)")),
                             (with(enc = (w = ones(3, 2), b = ones(2))), ("enc.w", "(3, 2)", "(2, 3)")),
                             (ones(11), ("the model", "Array")))
            text = refusal(dp, bad)
            @test (text, all(word -> occursin(word, text), words)) == (text, true)
        end
        @test step!(dp, good).grad_norm ≈ sqrt(12)
        missing === :zero && @test step!(dp, (enc = (w = ones(2, 3), b = nothing), layers = nothing)).grad_norm ≈ sqrt(6)
        missing === :error && @test occursin("'enc.b'", caught(() -> step!(dp, with(enc = (w = ones(2, 3),)))).text)
        close(dp)
    end
end

mutable struct Counted{W}
    w::W
    uses::Int
end
MegaDP.parts(x::Counted) = ((w = x.w, uses = x.uses), children -> Counted(children...))

testcase("children and gradients in a Ref") do
    model = (scale = Ref(ones(Float32, 2)), layer = Counted(ones(Float32, 3), 0), any = Ref{Any}(ones(Float32, 1)), empty = Ref{Any}())
    dp = DataParallel(world, model; lr = 0.0)
    @test [param.name for param in dp.buffer.params] == ["scale.x", "layer.w", "any.x"]
    @test dp.model.scale[] == [1, 1] && dp.model.scale[] !== model.scale[] && dp.model.any isa Ref{Any} && dp.model.empty === model.empty
    # Zygote's for whatever is mutable: a Ref of a named tuple.
    zygotes = (scale = Ref{Any}((x = [2.0, 0],)), layer = Ref{Any}((w = [0.0, 3, 0], uses = nothing)), any = Ref{Any}((x = [6.0],)),
               empty = nothing)
    @test step!(dp, zygotes).grad_norm ≈ 7
    @test occursin("layer.weight", refusal(dp, merge(zygotes, (layer = Ref{Any}((weight = ones(3),)),))))
    close(dp)
end

testcase("gradients of several microbatches are added up") do
    dp = DataParallel(world, (w = zeros(Float32, 2),); lr = 0.0)
    microbatch!(dp; last = false)
    put!(dp, (w = [1.0, 0],))
    microbatch!(dp; last = true)
    @test step!(dp, (w = [2.0, 4],)).grad_norm ≈ 5
    close(dp)
end

testcase("a wrapped layer hands over its gradients by itself, however often it runs") do
    layer = overlap((w = ones(Float32, 2),))
    dp = DataParallel(world, (wrapped = layer, plain = (w = ones(Float32, 2),)); async = true, lr = 0.0)
    inner = dp.model.wrapped.layer
    @test dp.model.wrapped isa MegaDP.Overlap && inner.w == [1, 1]
    for uses in 1:3
        foreach(_ -> MegaDP.forward_begins(inner), 1:uses)
        foreach(_ -> MegaDP.backward_ends((inner, 5), ((w = [1.0, 1],), nothing)), 1:uses)
        report = step!(dp, (wrapped = (layer = (w = [1.0uses, uses],),), plain = (w = [0.0, 0],)))
        @test report.grad_norm ≈ uses * sqrt(2)
        wait(dp)
    end
    foreach(_ -> MegaDP.forward_begins(inner), 1:2)  # one output was not used: one pullback only
    MegaDP.backward_ends(inner, (w = [3.0, 4],))
    @test step!(dp, (plain = (w = [0.0, 0],),)).grad_norm ≈ 5
    seen = Ref(false)
    @test overlap((x, y) -> (seen[] = true; x + y))(2, 3) == 5 && seen[]
    @test MegaDP.backward_ends((w = ones(2),), (w = ones(2),)) === nothing  # nobody's parameter
    close(dp)
end

testcase("gradients of a batch that was given up are never added to another's, in a layer that runs twice too") do
    layer = overlap((w = ones(Float32, 2),))
    dp = DataParallel(world, (wrapped = layer, plain = (w = ones(Float32, 2),)); lr = 0.0)
    inner = dp.model.wrapped.layer
    backward(values...) = (foreach(_ -> MegaDP.forward_begins(inner), 1:2); foreach(v -> MegaDP.backward_ends(inner, (w = [v, 0.0],)), values))
    plain = (plain = (w = [0.0, 4],),)
    for (again, refused) in ((plain, :STATE), (merge(plain, (wrapped = (layer = (w = [3.0, 0],),),)), :INVALID))
        backward(100.0)  # then an exception
        backward(1.0, 2.0)
        problem = caught(() -> step!(dp, again))
        @test problem.kind == refused && problem.param == 1 && occursin("zero_grad!(dp) on all ranks", problem.text)
        zero_grad!(dp)
        backward(1.0, 2.0)
        @test step!(dp, again).grad_norm ≈ 5
    end
    # The buffer's own, where nothing has left: what had been handed over is forgotten, and a layer may be between forward and backward.
    backward(100.0)
    zero_grad!(dp.buffer)
    backward(1.0, 2.0)
    @test step!(dp, merge(plain, (wrapped = (layer = (w = [3.0, 0],),),))).grad_norm ≈ 5
    close(dp)
end

testcase("after a tree that is refused the same step can be taken with the right one, and not after half of one") do
    dp = DataParallel(world, (wrapped = overlap((w = ones(Float32, 2),)), plain = (w = ones(Float32, 2),), tied = (w = ones(Float32, 2),)); lr = 0.0)
    MegaDP.forward_begins(dp.model.wrapped.layer)
    MegaDP.backward_ends(dp.model.wrapped.layer, (w = [3.0, 0],))
    with(w) = (plain = (w = w,), tied = (w = [0.0, 0],))
    @test caught(() -> step!(dp, with(ones(3)))).kind == :INVALID
    @test step!(dp, with([0.0, 4])).grad_norm ≈ 5
    @test caught(() -> put!(dp, with(ComplexF64[0, 4]))).kind == :INVALID  # after 'tied.w' has been put
    @test all(problem -> problem.kind == :STATE && occursin("zero_grad!(dp)", problem.text), [caught(() -> step!(dp, with([0.0, 4]))) for _ in 1:2])
    zero_grad!(dp)
    @test step!(dp, merge(with([0.0, 4]), (wrapped = (layer = (w = [3.0, 0],),),))).grad_norm ≈ 5
    close(dp)
end

"What a step says of a model with a layer wrapped and one not, where the wrapped one has handed over `handed` and the tree has `tree` there."
function step_with(tree, handed...; model = (wrapped = overlap((w = ones(Float32, 2),)), plain = (w = ones(Float32, 2),)))
    dp = DataParallel(world, model; lr = 0.0)
    try
        foreach(_ -> MegaDP.forward_begins(dp.model.wrapped.layer), handed)
        foreach(gradient -> MegaDP.backward_ends(dp.model.wrapped.layer, (w = gradient,)), handed)
        return step!(dp, (wrapped = (layer = (w = tree,),), plain = (w = [3.0, 4],))).grad_norm
    finally
        close(dp)
    end
end

testcase("what a wrapped layer's parameter gets by another way as well, such as a penalty on weights, is never dropped") do
    handed, penalty = Float32[1, 2], 2 * 1f-3 * ones(Float32, 2)
    for tree in (nothing, handed, copy(handed), Float64.(handed))
        @test step_with(tree, handed) ≈ sqrt(30)
    end
    parts = [Float32[sin(9k), 1f4 * cos(k)] for k in 1:5]
    for uses in 2:5  # as an AD adds them up, and in another order
        given = parts[1:uses]
        @test step_with(sum(given), given...) ≈ step_with(reduce(+, reverse(given)), given...) ≈ hypot(5, sum(given)...)
    end
    for problem in (caught(() -> step_with(handed .+ penalty, handed)), caught(() -> step_with(sum(parts) .+ penalty, parts...)),
                    caught(() -> step_with(sum(parts[1:2]) .+ penalty, parts[1:2]...)), caught(() -> step_with(zero(handed), handed)))
        @test (problem.kind, problem.param) == (:INVALID, 1)
        @test all(word -> occursin(word, problem.text), ("parameter 1, 'wrapped.layer.w'", "overlap", "weight_decay"))
    end
    @test caught(() -> step_with(Float32[1, NaN], Float32[1, NaN])).kind == :NUMERIC  # and not another gradient
    # At a place that is not wrapped.
    shared = ones(Float32, 2)
    tied = (wrapped = overlap((w = shared,)), plain = (w = shared,))
    @test occursin("'wrapped.layer.w'", caught(() -> step_with(handed, handed; model = tied)).text)
end

testcase("after a step that was refused what wrapped layers had handed over can be let go of") do
    dp = DataParallel(world, (wrapped = overlap((w = ones(Float32, 2),)),); lr = 0.0)
    give(gradient) = (MegaDP.forward_begins(dp.model.wrapped.layer); MegaDP.backward_ends(dp.model.wrapped.layer, (w = gradient,)))
    give([1.0, 2])
    @test caught(() -> step!(dp, (wrapped = (layer = (w = [1.0, 3],),),))).kind == :INVALID
    sync!(dp.buffer)
    microbatch!(dp; last = true)
    give([3.0, 4])
    @test step!(dp).grad_norm ≈ 5 && all(isnothing, dp.handed)
    close(dp)
end

testcase("a transposed matrix is tied to the matrix, also in wrapped layers") do
    W = Float32[1 2 3; 4 5 6]
    dp = DataParallel(world, (embed = W, head = transpose(W), last = (w = W',), alone = transpose(ones(Float32, 1, 2))); rule = :sgd, lr = 1.0)
    @test [param.name for param in dp.buffer.params] == ["embed", "alone.parent"] && dp.buffer.params[1].size == (2, 3)
    @test dp.model.head isa Transpose && dp.model.last.w isa Adjoint && parent(dp.model.head) === parent(dp.model.last.w) === dp.model.embed
    grads = (embed = ones(2, 3), head = Float32[1 0; 0 0; 0 2], last = (w = (parent = ones(2, 3),),), alone = [3.0 4.0]')
    @test step!(dp, grads).grad_norm ≈ sqrt(9 + 4 * 4 + 16 + 25)
    @test dp.model.embed == W .- [3 2 2; 2 2 4] && dp.model.head == transpose(dp.model.embed) && dp.model.alone == [-2 -3]'
    text = refusal(dp, (embed = nothing, head = ones(2, 3), last = nothing, alone = nothing))
    @test occursin("'head' has size (2, 3); the parameter has (3, 2)", text)
    close(dp)
    dp = DataParallel(world, (embed = overlap((w = W,)), head = overlap((w = W',))); lr = 0.0)
    foreach(wrapped -> MegaDP.forward_begins(wrapped.layer), dp.model)
    MegaDP.backward_ends(dp.model.head.layer, (w = Float32[1 0; 0 0; 0 2],))
    MegaDP.backward_ends(dp.model.embed.layer, (w = ones(2, 3),))
    @test step!(dp, (embed = (layer = (w = ones(2, 3),),), head = (layer = (w = Float32[1 0; 0 0; 0 2],),))).grad_norm ≈ sqrt(4 + 4 + 9)
    close(dp)
end

testcase("of a Diagonal the diagonal is the parameter, and is tied to it") do
    d = Float32[1, 2]
    dp = DataParallel(world, (d = Diagonal(d), same = d, t = transpose(Diagonal(ones(Float32, 2)))); rule = :sgd, lr = 1.0)
    @test [param.name for param in dp.buffer.params] == ["d.diag", "t.diag"] && dp.model.d isa Diagonal && dp.model.d.diag === dp.model.same
    # Zygote's is a Diagonal or a named tuple; other ADs may have the whole matrix.
    for (k, gradient) in enumerate((Diagonal(Float32[1, 2]), (diag = Float32[1, 2],), Float32[1 9; 9 2]))
        step!(dp, (d = gradient, same = nothing, t = gradient))
        @test dp.model.d == Diagonal([1, 2] .- k .* [1, 2]) && dp.model.t == Diagonal([1, 1] .- k .* [1, 2])
    end
    @test occursin("'d' has size (3, 3)", refusal(dp, (d = Diagonal(ones(3)), same = nothing, t = nothing)))
    close(dp)
    tree = (d = Diagonal([1.0, 2]),)
    @test synchronize!!(world, tree).d === tree.d && allreduce!(world, tree).d === tree.d
end

testcase("matrices whose entries are not all numbers of their own are refused as parameters, by place and type") do
    A = Float32[1 2; 2 4]
    for w in (UpperTriangular(A), UnitLowerTriangular(A), Symmetric(A), Hermitian(A), Tridiagonal(A), Bidiagonal(A, :U), sparse(A), view(sparse(A), :, 1))
        problem = caught(() -> DataParallel(world, (a = (w = w,),)))
        @test problem.kind == :INVALID && occursin("'a.w", problem.text) && occursin("wrap it where it is used", problem.text)
        @test w isa SubArray || occursin("of type $(nameof(typeof(w)))", problem.text)
    end
    for w in (view(A, 1:1, :), view(A, [1, 2], 1), transpose(A), A[:, 1]', PermutedDimsArray(A, (2, 1)), reshape(view(A, 1:2, 1:2), 4), 1.0f0:3.0f0,
              reinterpret(Float32, zeros(ComplexF32, 1, 2)))
        dp = DataParallel(world, (w = w,); rule = :sgd, lr = 1.0)
        step!(dp, (w = ones(Float32, size(w)),))
        @test dp.model.w == w .- 1
        close(dp)
    end
end

testcase("a vector of arrays stays one of its type") do
    for model in ([ones(Float32, 1, 2), ones(Float32, 2, 2)], [(w = ones(Float32, 2),)], Any[ones(Float32, 2), tanh], [view(ones(Float32, 3), 1:2)])
        dp = DataParallel(world, (layers = model,))
        @test typeof(dp.model.layers) == (eltype(model) <: SubArray ? Vector{Vector{Float32}} : typeof(model))
        close(dp)
    end
end

testcase("without Functors.jl a function that has arrays in it is refused, and no other") do
    adds(b) = x -> x .+ b
    for call in (DataParallel, synchronize!!, allreduce!)
        for f in (adds(ones(Float32, 2)), Base.Fix1(+, [1.0]), adds((w = ones(2),)), adds(adds(ones(2))))
            problem = caught(() -> call(world, (w = ones(Float32, 2), more = (act = f,))))
            @test problem.kind == :INVALID && occursin("'more.act' is a function that has arrays in it", problem.text)
        end
        for f in (tanh, Base.Fix1(+, 1), adds("b"), adds(adds(1.0f0)))
            @test call(world, (w = ones(Float32, 2), act = f)) !== nothing
        end
    end
    @test DataParallel(world, (w = ones(Float32, 2), act = Base.Fix1(+, [1, 2]))).model.act.x == [1, 2]  # whole numbers are no parameters
end

testcase("DataParallel takes every keyword of Optimizer") do
    keywords = Base.kwarg_decl(first(methods(MegaDP.create_optimizer)))
    @test length(keywords) > 15 && all(MegaDP.is_optimizers, keywords) && MegaDP.is_optimizers(:rule)
    @test !any(MegaDP.is_optimizers, Base.kwarg_decl(first(methods(MegaDP.buffer_config))))
    for given in ((average_decay = 0.999,), (state_dtype = :bf16,), (state_dtype = :bf16, stochastic_state = true, seed = 3), (no_master = true,),
                  (rule = :caller, check_update = true), (rule = :caller, sharding = :whole, param_states = (rows = Dict("w" => 8),)))
        dp = DataParallel(world, (w = zeros(Float32, 4),); given...)
        step!(piece -> nothing, dp, (w = ones(4),))
        close(dp)
    end
end

testcase("what is written into a model in place is kept by the next step, whatever its parameters are of") do
    for type in (Float32, Float16)
        dp = DataParallel(world, (w = ones(type, 4),); rule = :sgd, lr = 0.5, average_decay = 0.5)
        step!(dp, (w = ones(4),))
        dp.model.w .= 7
        step!(dp, (w = ones(4),))
        @test dp.model.w == fill(6.5, 4)
        # Steps below half a digit of Float16 add up: only what was written is taken over.
        foreach(_ -> step!(dp, (w = fill(1e-3, 4),)), 1:16)
        @test MegaDP.state(dp.optimizer, 1, :master) ≈ fill(6.492f0, 4)
        averaged(dp.optimizer) do
            @test caught(() -> step!(dp, (w = ones(4),))).kind == :STATE
        end
        step!(dp, (w = ones(4),))
        close(dp)
    end
end

testcase("parameters that share memory but are not one array are refused, and both places named") do
    W, w = ones(Float32, 2, 3), ones(Float32, 2)
    for (one, other) in ((W, view(W, :, :)), (view(W, 1:1, :), W), (W, vec(W)), (reshape(W, 3, 2), W), (W, reshape(W', 6)), (w, transpose(w)),
                         (W, PermutedDimsArray(W, (2, 1))), (view(W, :, 1:2), view(W, 2, :)), (view(W, [1, 2], 1), W))
        problem = caught(() -> DataParallel(world, (a = (w = one,), far = ones(Float32, 9), b = [other])))
        @test problem.kind == :INVALID && occursin("share memory", problem.text)
        @test occursin(r"'a\.w(\.parent)?'", problem.text) && occursin(r"'b\.1(\.parent)?'", problem.text)
    end
    dp = DataParallel(world, (rows = [view(W, 1, :), view(W, 2, :)], none = (W[1:0, :], W[1:0, :])))  # between each other
    @test length(dp.buffer) == 4
    close(dp)
end

testcase("a parameter of numbers that cannot be trained is named, whatever they are") do
    for type in (BigFloat, ComplexF32, Real, Rational{Int})
        problem = caught(() -> DataParallel(world, (a = ones(Float32, 2), b = ones(type, 2))))
        @test problem.kind == :INVALID && problem.param == 2 && occursin("'b', is of $type", problem.text)
    end
end

testcase("synchronize!! takes ranges and complex numbers; numbers without a fixed size, and what cannot be reduced, are named") do
    tree = (r = 2:4, s = 0.0:0.5:2, l = LinRange(0, 1, 3), e = 1:0, c = 1.0f0im, z = [1.0im, 2], π = π, n = Int32(3), big = BigFloat[])
    @test synchronize!!(world, tree) === tree
    for (bad, told) in ((big(1.0), "a number of BigFloat"), (big(2), "a number of BigInt"), (Complex(big(1.0)), "a number of Complex{BigFloat}"),
                        (BigFloat[1], "an array of BigFloat"), (big(1):big(3), "an array of BigInt"), (Real[1, 2.0], "an array of Real"))
        problem = caught(() -> synchronize!!(world, (w = ones(2), more = [(n = bad,)])))
        @test problem.kind == :INVALID && occursin("'more.1.n' is $told", problem.text)
        @test occursin("the tree is $told", caught(() -> synchronize!!(world, bad)).text)
    end
    for (bad, told) in ((big(1.0), "a number of BigFloat"), (1.0im, "a number of Complex{Float64}"), (Int32[1], "an array of Int32"),
                        (1:3, "an array of Int64; op is avg"), (5, "a number of Int64; op is avg"), (true, "a number of Bool"))
        problem = caught(() -> allreduce!(world, (w = ones(2), more = [(n = bad,)])))
        @test problem.kind == :INVALID && occursin("'more.1.n' is $told", problem.text)
    end
    @test allreduce!(world, (r = 1:3, n = 5), +) == (r = [1, 2, 3], n = 5)
end

testcase("synchronize!! and allreduce! keep the tree's shape") do
    tree = (a = [1.0f0, 2], b = (3, [true, false]), c = "text", d = nothing, e = transpose([1.0 2; 3 4]), f = Int32[5])
    @test synchronize!!(world, tree) == tree && synchronize!!(world, tree).a === tree.a && synchronize!!(world, tree).e === tree.e
    grads = (a = [1.0f0, 2], b = (nothing, [3.0]), c = view([1.0f0, 2, 3, 4], 1:2:3), d = 2.0:3.0)
    found = allreduce!(world, grads)
    @test found == (a = [1, 2], b = (nothing, [3]), c = [1, 3], d = [2, 3]) && found.a === grads.a
    @test allreduce!(world, 2.5f0) === 2.5f0 && allreduce!(world, (loss = 1.5, a = 1.5, w = grads.a, v = grads.a), +) == (loss = 1.5, a = 1.5, w = [1, 2], v = [1, 2])
    half = (s = Symmetric([1.0 2; 2 3]), h = Hermitian([1 2im; -2im 3], :L))
    @test synchronize!!(world, half).s === half.s && synchronize!!(world, half).h === half.h
    for call in (synchronize!!, allreduce!, DataParallel)
        problem = caught(() -> call(world, (w = ones(Float32, 2), more = Dict(:a => ones(Float32, 2)))))
        @test problem.kind == :INVALID && occursin("'more' is a Dict with arrays", problem.text)
        call == DataParallel || @test call(world, (note = Dict(:a => "text"),)).note[:a] == "text"
    end
end

testcase("a data set's part has what iteration and loaders need") do
    part = DistributedDataContainer(world, 'a':'e')
    @test length(part) == 5 && part[2] == 'b' && part[2:3] == 'b':'c' && collect(part) == collect('a':'e') && part[end] == 'e'
end
