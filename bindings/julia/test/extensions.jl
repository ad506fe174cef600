# SPDX-License-Identifier: Apache-2.0
# The extension files against STAND-INS for the packages (test/standins): that they load, and do what they are for by those packages' API.
include("standins.jl")
const world_of_one = Comm()

testcase("stand-in, before Functors: structs are leaves, and a tree of nothing else is refused") do
    for call in (synchronize!!, allreduce!), tree in (Some(ones(Float32, 2)), (Some(1.0), nothing))
        @test occursin("Functors.jl", caught(() -> call(world_of_one, tree)).text)
    end
    @test synchronize!!(world_of_one, ("text", nothing, sum)) == ("text", nothing, sum) && allreduce!(world_of_one, (nothing,)) == (nothing,)
    @test occursin("Functors.jl", caught(() -> DataParallel(world_of_one, Some(ones(Float32, 2)))).text)
end

load_extensions(:Functors, :Optimisers, :ChainRulesCore, :Flux, :Lux, :CUDA, :MPI)

const layers = (Flux.Dense(Float32[1 2; 3 4; 5 6], zeros(Float32, 3), tanh), Flux.Dense(Float32[1 0 -1] ./ 4, zeros(Float32, 1)))

testcase("stand-in Functors: a model of structs is taken over and built again") do
    dp = DataParallel(world_of_one, Flux.Chain(layers...))
    @test [param.name for param in dp.buffer.params] == ["layers.1.weight", "layers.1.bias", "layers.2.weight", "layers.2.bias"]
    @test dp.model isa Flux.Chain && dp.model.layers[1].σ === tanh && dp.model.layers[1].weight == layers[1].weight
    @test dp.model.layers[1].weight !== layers[1].weight
    @test Functors.children(overlap(layers[1])) == (layer = layers[1],)
    close(dp)
    @test synchronize!!(world_of_one, layers[1]) === layers[1]
end

struct Stack{M<:AbstractMatrix}
    ws::Vector{M}
end

testcase("stand-in Functors: what functions have captured is trained, synchronized and reduced") do
    count, b = 0, ones(Float32, 2)
    counts = x -> (count += 1; x .+ b)
    model = (w = ones(Float32, 2), f = Base.Fix1(*, fill(3.0f0, 1, 2)), g = counts, stack = Stack([ones(Float32, 2, 2)]), act = tanh)
    dp = DataParallel(world_of_one, model; rule = :sgd, lr = 1.0)
    @test [param.name for param in dp.buffer.params] == ["w", "f.x", "g.b", "stack.ws.1"]
    step!(dp, (w = zeros(2), f = (f = nothing, x = [1.0 2]), g = (b = [0.5, 1],), stack = (ws = [ones(2, 2)],), act = nothing))
    @test dp.model.f([1, 1]) == [3] && dp.model.g(0.0f0) == [0.5, 0] && model.g(0.0f0) == [1, 1] && dp.model.act === tanh
    @test dp.model.stack isa Stack{Matrix{Float32}} && dp.model.stack.ws[1] == zeros(2, 2)
    close(dp)
    @test synchronize!!(world_of_one, model) === model
    @test allreduce!(world_of_one, (f = Base.Fix2(*, [2.0, 4]),)).f.x == [2, 4]
end

struct Normalised{A,B}
    scale::A
    mean::B
end
struct OldLayer{A,B}
    scale::A
    mean::B
end
Optimisers.trainable(layer::Normalised) = (scale = layer.scale,)
Optimisers.trainable(layer::OldLayer) = (layer.scale,)

testcase("stand-in Optimisers: only what is trainable becomes a parameter") do
    for type in (Normalised, OldLayer)
        model = (norm = type(ones(Float32, 2), zeros(Float32, 2)), other = ones(Float32, 2))
        dp = DataParallel(world_of_one, model)
        @test [param.name for param in dp.buffer.params] == ["norm.scale", "other"]
        @test dp.model.norm.mean === model.norm.mean && dp.model.norm.scale !== model.norm.scale
        close(dp)
    end
end

testcase("stand-in Optimisers: an array that stands where it is not trained too stays the same array there") do
    shared = ones(Float32, 2)
    dp = DataParallel(world_of_one, (norm = Normalised(zeros(Float32, 2), shared), other = shared); rule = :sgd, lr = 1.0)
    @test [param.name for param in dp.buffer.params] == ["norm.scale", "other"] && dp.model.norm.mean === dp.model.other
    step!(dp, (norm = (scale = zeros(2), mean = nothing), other = Float32[1, 2]))
    @test dp.model.norm.mean == [0, -1]
    close(dp)
end

testcase("stand-in Optimisers: gradients are averaged before the rule, states are synchronized in place") do
    model = (w = Float32[1, 2], b = Float32[3])
    rule = DistributedOptimizer(world_of_one, Optimisers.Momentum(0.5, 0.9))
    states = Optimisers.setup(rule, model)
    @test states.w.state == [0, 0]
    Optimisers.update!(states, model, allreduce!(world_of_one, (w = Float32[2, 2], b = Float32[4])))
    @test model.w ≈ [0, 1] && model.b ≈ [1] && states.w.state ≈ [1, 1]
    @test synchronize!!(world_of_one, states).w === states.w
    lazy = Broadcast.broadcasted(*, 2, Float32[1, 1])
    descent = DistributedOptimizer(world_of_one, Optimisers.Descent(0.5))
    @test Broadcast.materialize(Optimisers.apply!(descent, nothing, model.w, lazy)[2]) == [1, 1]
    @test Optimisers._adjust(descent, (eta = 0.1,)).rule.eta == 0.1
end

struct Counting <: Optimisers.AbstractRule end
Optimisers.init(::Counting, x::AbstractArray) = (zero(x), 7.0)
MegaDP.elementwise(::Counting) = true

testcase("stand-in Optimisers: its rules are the library's where the formulas are the same, and what cannot be is refused by name") do
    start = Float32[1, -2, 0.5]
    gradient(t) = Float32[sin(t), cos(2t), 0.1t - 1]
    adam = Optimisers.Adam(0.05, (0.8, 0.95), 1e-6)
    for rule in (Optimisers.Descent(0.1), Optimisers.Momentum(0.05, 0.7), Optimisers.Nesterov(0.05, 0.7), adam,
                 Optimisers.AdamW(0.05, (0.8, 0.95), 0.2, 1e-6, true), Optimisers.AdamW(0.05, (0.8, 0.95), 0.0, 1e-6, false),
                 Optimisers.OptimiserChain(Optimisers.WeightDecay(0.2), adam),
                 Optimisers.OptimiserChain(Optimisers.WeightDecay(0.2), Optimisers.Nesterov(0.05, 0.7)))
        dp = DataParallel(world_of_one, (w = copy(start),); rule = rule)
        model = (w = Float64.(start),)
        states = Optimisers.setup(rule, model)
        for t in 1:20
            step!(dp, (w = gradient(t),))
            Optimisers.update!(states, model, (w = Float64.(gradient(t)),))
        end
        @test dp.model.w ≈ model.w && !(dp.model.w ≈ start)
        close(dp)
    end
    dp = DataParallel(world_of_one, (w = copy(start),); rule = Optimisers.Descent(0.5), lr = 0.25)  # a keyword replaces
    step!(dp, (w = ones(3),))
    @test dp.model.w == start .- 0.25f0
    close(dp)
    buffer = Buffer(world_of_one, [Param("w", (3,))])
    for (rule, told) in ((Optimisers.ClipNorm(0.1), "ClipNorm, which is not known to be element-wise"), (Counting(), "7.0, which the number of the step"),
                         (Optimisers.OptimiserChain(Optimisers.ClipNorm(1), adam), "OptimiserChain(ClipNorm, Adam)"), (3, "rule is 3"),
                         (Optimisers.OptimiserChain(adam, adam, adam), "keeps 6 arrays"))
        problem = caught(() -> Optimizer(buffer; rule = rule))
        @test problem.kind == :INVALID && occursin(told, problem.text)
    end
    for (keywords, told) in (((betas = (0.5, 0.5),), "betas was given"), ((param_groups = [(weight_decay = 0.1,)],), "weight_decay was given"))
        problem = caught(() -> Optimizer(buffer; rule = Optimisers.RMSProp(0.1), keywords...))
        @test problem.kind == :INVALID && occursin(told, problem.text)
    end
    @test occursin("lr was given", caught(() -> Optimizer(buffer; rule = Optimisers.WeightDecay(0.1), lr = 1)).text)
    optimizer = Optimizer(buffer; rule = Optimisers.RMSProp(0.1))
    @test occursin("eps was given", caught(() -> set_param_group!(optimizer, 1; eps = 1e-3)).text)
    close(buffer)
end

"""
Trains by `rule` and, beside it in Float64, by the package's own loop; halfway through, where a folder is given, by another one that loads what
was saved.
"""
function train_by_pieces(rule, folder = nothing; t_of_lr = typemax(Int))
    start = Float32[1, -2, 0.5, 3, -0.25]
    gradient(t) = Float32[sin(t), cos(2t), 0.1t - 1, -1, 0.3 * cos(t)]
    make() = DataParallel(world_of_one, (w = copy(start),); rule = rule)
    dp, model = make(), (w = Float64.(start),)
    states = Optimisers.setup(rule, model)
    for t in 1:20
        if folder !== nothing && t == 11
            save_checkpoint(folder, dp)
            close(dp)
            dp = make()
            load_checkpoint!(folder, dp)
        end
        if t == t_of_lr
            states = (w = Optimisers.Leaf(Optimisers._adjust(rule, (eta = 0.01,)), states.w.state, false),)
            set_param_group!(dp.optimizer, 1; lr = 0.01)
        end
        @test step!(dp, (w = gradient(t),)).step == t
        Optimisers.update!(states, model, (w = Float64.(gradient(t)),))
    end
    @test dp.optimizer.names !== nothing && dp.model.w ≈ model.w && !(dp.model.w ≈ start)
    close(dp)
end

testcase("stand-in Optimisers: element-wise rules that the library has not are applied to pieces, and their state is in checkpoints") do
    adam = Optimisers.Adam(0.05, (0.8, 0.95), 1e-6)
    for rule in (Optimisers.RMSProp(0.05), Optimisers.RMSProp(0.05; centred = true), Optimisers.AdaGrad(0.1, 0.25), Optimisers.Lion(0.05, (0.9, 0.99)),
                 Optimisers.RAdam(0.05, (0.8, 0.95), 1e-6), Optimisers.AdamW(0.05, (0.8, 0.95), 0.01, 1e-6, false),
                 Optimisers.OptimiserChain(Optimisers.ClipGrad(0.5), adam, Optimisers.WeightDecay(0.01)),
                 Optimisers.OptimiserChain(Optimisers.WeightDecay(0.01), Optimisers.RMSProp(0.05)))
        train_by_pieces(rule)
        mktempdir(folder -> train_by_pieces(rule, folder))
    end
    train_by_pieces(Optimisers.RMSProp(0.05); t_of_lr = 8)
end

testcase("stand-in Optimisers: a rule on pieces takes a step with the library's, and with a function") do
    params = [Param("w", (2,)), Param("v", (2,); param_group = 2), Param("u", (2,); param_group = 3)]
    buffer = Buffer(world_of_one, params)
    optimizers = [Optimizer(buffer; rule = rule, first_param_group = k, lr...) for (k, (rule, lr)) in
                  enumerate(((Optimisers.AdaGrad(0.5, 1e-8), NamedTuple()), (:sgd, (lr = 0.25,)), (:caller, NamedTuple())))]
    foreach(param -> put!(buffer, param, Float32[2, -2]), 1:3)
    step_many!(piece -> piece.master .= piece.optimizer, optimizers)
    @test param_view(buffer, 1) ≈ [-0.5, 0.5] && param_view(buffer, 2) == [-0.5, 0.5] && param_view(buffer, 3) == [3, 3]
    close(buffer)
end

testcase("stand-in Flux: its training loop over a DataParallel") do
    # async: the loop itself must wait, since no layer here does.
    dp = DataParallel(world_of_one, Flux.Chain(layers...); lr = 0.05, async = true)
    items = DistributedDataContainer(world_of_one, [(Float32[x; -x], Float32[x / 2]) for x in -1:0.25:1]; even = true)
    loss(model, x, y) = sum(abs2, model(x) .- y)
    whole() = sum(item -> loss(dp.model, item...), items)
    before = whole()
    foreach(_ -> Flux.train!(loss, dp, items), 1:20)
    @test whole() < before / 2
    Flux.train!((model, x) -> sum(model(x)), dp, [Float32[1, 1]])  # items that are no tuples
    @test stats(dp.buffer).syncs == 20 * 9 + 1
    close(dp)
end

testcase("stand-in Flux: its training loop has the same bits with zero2") do
    items = [(Float32[x; -x], Float32[x / 2]) for x in -1:0.25:1]
    trained = map((:zero1, :zero2)) do sharding
        dp = DataParallel(world_of_one, Flux.Chain(layers...); sharding = sharding, bucket_elements = 1)
        foreach(_ -> Flux.train!((model, x, y) -> sum(abs2, model(x) .- y), dp, items), 1:3)
        close(dp)
        return map(copy, dp.arrays)
    end
    @test trained[1] == trained[2] && trained[1][1] != layers[1].weight
end

testcase("stand-in Flux: its training loop puts the model into training mode, as Flux's own does") do
    dp = DataParallel(world_of_one, Flux.Chain(layers[1], Flux.Dropout(false), overlap(layers[2])))
    Flux.train!((model, x) -> sum(model(x)), dp, [Float32[1, 1]])
    @test dp.model.layers[2].active === true
    close(dp)
end

struct TestAD <: ChainRulesCore.RuleConfig{Union{ChainRulesCore.HasReverseMode,ChainRulesCore.NoForwardsMode}} end

"What Zygote would answer for a layer without σ: thunks and zeros among it."
function ChainRulesCore.rrule_via_ad(::TestAD, layer::Flux.Dense, x)
    weight_change(dy) = ChainRulesCore.Thunk(() -> dy * transpose(x))
    return layer(x), dy -> (ChainRulesCore.Tangent{Flux.Dense}(weight = weight_change(dy), bias = vec(sum(dy; dims = 2))),
                            ChainRulesCore.Thunk(() -> transpose(layer.weight) * dy))
end

testcase("stand-in ChainRulesCore: a wrapped layer's pullback hands over its gradients") do
    wrapped = overlap(Flux.Dense(Float32[1 2; 3 4], zeros(Float32, 2)))
    dp = DataParallel(world_of_one, (first = wrapped, second = Flux.Dense(ones(Float32, 1, 2), zeros(Float32, 1))); lr = 0.0)
    x = Float32[1 2; 3 4]
    for _ in 1:2
        y, pullback = ChainRulesCore.rrule(TestAD(), MegaDP.run_layer, dp.model.first.layer, x)
        @test y == dp.model.first(x) && dp.arrived == [0, 0, 0, 0] && dp.expected == [1, 1, 0, 0]
        self, layer, dx = pullback(ChainRulesCore.Thunk(() -> ones(Float32, 2, 2)))
        @test self isa ChainRulesCore.NoTangent && dx == [4 4; 6 6] && layer.weight == [3 7; 3 7]
        @test dp.arrived == [1, 1, 0, 0] && grad_view(dp.buffer, 1) == [3 7; 3 7] && grad_view(dp.buffer, 2) == [2, 2]
        report = step!(dp, (first = (layer = layer,), second = (weight = zeros(1, 2), bias = zeros(1))))
        @test report.grad_norm ≈ sqrt(9 + 49 + 9 + 49 + 8)
    end
    # A penalty on the same weights, whose gradient the AD has added to the layer's.
    _, pullback = ChainRulesCore.rrule(TestAD(), MegaDP.run_layer, dp.model.first.layer, x)
    layer = pullback(ones(Float32, 2, 2))[2]
    penalized = (weight = layer.weight .+ 0.01f0 .* dp.model.first.layer.weight, bias = layer.bias)
    problem = caught(() -> step!(dp, (first = (layer = penalized,), second = (weight = zeros(1, 2), bias = zeros(1)))))
    @test problem.kind == :INVALID && occursin("'first.layer.weight'", problem.text)
    @test ChainRulesCore.rrule(local_rank, world_of_one)[1] == 0
    @test ChainRulesCore.rrule(total_workers, world_of_one)[2](1) == (ChainRulesCore.NoTangent(), ChainRulesCore.NoTangent())
    close(dp)
end

mutable struct Stateful{W}
    w::W
    calls::Int
end

testcase("stand-in ChainRulesCore: tangents of mutable structs, thunks in Refs, and names that the model has not") do
    dp = DataParallel(world_of_one, (layer = Stateful(ones(Float32, 2), 0), plain = Stateful(ones(Float32, 2), 0)); lr = 0.0)
    tangent(; fields...) = ChainRulesCore.MutableTangent{Stateful}((; fields...))
    named(; fields...) = ChainRulesCore.Tangent{NamedTuple}(; fields...)
    late = ChainRulesCore.Thunk(() -> [3.0, 0])
    grads = named(layer = tangent(w = [0.0, 4], calls = ChainRulesCore.NoTangent()), plain = Ref{Any}((w = late, calls = nothing)))
    @test step!(dp, grads).grad_norm ≈ 5
    for (bad, place) in ((named(layer = tangent(v = [0.0, 4]), plain = ChainRulesCore.ZeroTangent()), "layer.v"),
                         (named(plane = tangent(w = [0.0, 4])), "plane"))
        problem = caught(() -> step!(dp, bad))
        @test problem.kind == :INVALID && occursin(place, problem.text)
    end
    # What a wrapped layer's pullback hands over is compared too.
    problem = caught(() -> MegaDP.backward_ends((dp.model.layer, 5), (tangent(v = [0.0, 4]), nothing)))
    @test problem.kind == :INVALID && occursin("v", problem.text)
    MegaDP.backward_ends((dp.model.layer, 5), (tangent(w = [0.0, 4]), nothing))
    @test step!(dp, named(plain = tangent(w = [3.0, 0]))).grad_norm ≈ 5
    close(dp)
end

testcase("stand-in ChainRulesCore 0.9, which cannot call the AD back: the extension loads, and says from which version on layers can be wrapped") do
    output = read(`$(julia_command()) $(joinpath(PROGRAMS, "old_rules.jl"))`, String)
    @test output == "loaded\nUNSUPPORTED true\n"
end

struct LuxDense <: Lux.AbstractLuxLayer end
(::LuxDense)(x, ps, st) = (ps.weight * x .+ ps.bias, st)
Lux.initialparameters(::LuxDense) = (weight = Float32[1 2; 3 4], bias = zeros(Float32, 2))

function ChainRulesCore.rrule_via_ad(::TestAD, layer::LuxDense, x, ps, st)
    zero = ChainRulesCore.NoTangent()
    return layer(x, ps, st), ((dy, _),) -> (zero, transpose(ps.weight) * dy,
                                            ChainRulesCore.Tangent{typeof(ps)}(weight = dy * transpose(x), bias = vec(sum(dy; dims = 2))), zero)
end

testcase("stand-in Lux: a wrapped layer, whose parameters are arguments") do
    model = overlap(LuxDense())
    @test model isa Lux.AbstractLuxLayer
    dp = DataParallel(DistributedBackend(world_of_one), (layer_1 = Lux.initialparameters(model),); lr = 0.0)
    ps, x = dp.model.layer_1, Float32[1 2; 3 4]
    @test Lux.apply(model, x, ps, NamedTuple()) == (ps.weight * x, NamedTuple())
    _, pullback = ChainRulesCore.rrule(TestAD(), MegaDP.run_layer, model.layer, x, ps, NamedTuple())
    pullback((ones(Float32, 2, 2), nothing))
    @test step!(dp).grad_norm ≈ sqrt(9 + 49 + 9 + 49 + 8)
    close(dp)
end

testcase("stand-in Lux: DistributedUtils over a communicator") do
    backend = DistributedBackend(world_of_one)
    utils = Lux.DistributedUtils
    @test utils.local_rank(backend) == 0 && utils.total_workers(backend) == 1
    values, other = Float32[1, 2], zeros(Float32, 2)
    utils.allreduce!(backend, values, utils.avg)
    utils.allreduce!(backend, values, other, +)
    @test other == [1, 2]
    utils.bcast!(backend, Float32[7, 8], other)
    utils.bcast!(backend, Int32[5])
    utils.reduce!(backend, values, max)
    utils.reduce!(backend, values, other, utils.avg; root = 0)
    @test values == other == [1, 2]
end

testcase("stand-in CUDA: where arrays are, and on which stream") do
    array = CUDA.CuArray(Float32[1 2; 3 4])
    @test MegaDP.device_of(array) == (2, 3) && MegaDP.device_of(view(array, :, 1:1)) == (2, 3)
    @test MegaDP.stream_of(array) == Ptr{Cvoid}(UInt(0x1234)) == MegaDP.stream_of(transpose(array))
    tensor = MegaDP.borrow(array, false).tensor
    @test tensor.device_type == 2 && tensor.device_id == 3 && UInt(tensor.data) == UInt(pointer(array.host))
    shape = Int64[2, 2]
    freed = Ref(false)
    GC.@preserve shape array begin
        raw = MegaDP.Raw.mdp_tensor(; dtype = MegaDP.Raw.MDP_DTYPE_F32, device_type = 2, ndim = 2, data = tensor.data, shape = pointer(shape))
        found = MegaDP.wrap(raw, false, _ -> (freed[] = true))
        @test found isa CUDA.CuArray{Float32,2} && found == array.host && !freed[]
        finalize(found)
        @test freed[]
    end
    @test MegaDP.task_stream[]() == Ptr{Cvoid}(UInt(0x1234))
    # The communicator is the host's: its calls go without a stream, whatever package is loaded.
    dp = DataParallel(world_of_one, (w = ones(Float32, 2),))
    @test step!(dp, (w = ones(2),)).step == 1
    close(dp)
end

testcase("stand-in ChainRulesCore and MPI: gradients of wrapped layers leave while backward goes on, over ranks that MPI brought together") do
    shared = tempname()
    outcome = run_ranks(2, "overlap.jl", shared)
    rm(shared; force = true)
    @test succeeded(outcome)
    @test length(said(outcome, "times")) == 6
    for times in said(outcome, "times")
        @test length(times) >= 2
        ready, begun, ended, synced = times[1]
        @test 0 < ready <= begun <= ended < synced
    end
    @test all(>=(3), said(outcome, "launched_in_backward"))
    isempty(said(outcome, "times")) || println("of the last step, in microseconds before the end of backward: ",
        [round.(Int, (times[4] .- times[1:3]) ./ 1000) for times in said(outcome, "times")[end]], " (ready, reduce begun, ended)")
end

testcase("stand-in ChainRulesCore: layers cut over two ranks, and the operators between them, give what the unsplit layer gives, and its gradients") do
    outcome = run_ranks(2, "tensor_parallel.jl")
    @test succeeded(outcome)
    for (name, count) in (("pair", 9), ("others", 1), ("buffer", 2), ("regions", 3), ("embedding", 9), ("losses", 6), ("token", 1), ("seeds", 1))
        @test (name, said(outcome, name)) == (name, fill(true, 2count))
    end
    @test said(outcome, "refused") == [["INVALID", true], ["INVALID", true]]
end

testcase("stand-in ChainRulesCore: halos between four ranks are what the whole array has there, and their gradients go back") do
    outcome = run_ranks(4, "halo.jl")
    @test succeeded(outcome)
    for name in ("place", "forward", "backward", "single", "waves", "columns")
        @test (name, said(outcome, name)) == (name, fill(true, 4))
    end
    @test said(outcome, "different") == fill("DESYNC", 4)
    for name in ("sentence", "uneven", "edges")
        @test (name, said(outcome, name)) == (name, fill(true, 4))
    end
end

close(world_of_one)
