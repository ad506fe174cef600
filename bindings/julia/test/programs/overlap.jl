# SPDX-License-Identifier: Apache-2.0
# Three layers wrapped by `overlap`, in several buckets, differentiated by the rule of the ChainRulesCore extension (against the stand-in). The
# first layer's pullback, the last of backward, does not go on before it has seen the bucket of the last layer reduced by all ranks: so that
# one was launched, and finished, while backward was going on. The ranks found each other by the MPI extension (against the stand-in).
include("rank.jl")
include(joinpath("..", "standins.jl"))
load_extensions(:Functors, :ChainRulesCore, :MPI)

struct Layer{W,B,F}
    w::W
    b::B
    before_its_pullback::F
end
(layer::Layer)(x) = layer.w * x .+ layer.b

struct TapeAD <: ChainRulesCore.RuleConfig{ChainRulesCore.HasReverseMode} end

function ChainRulesCore.rrule_via_ad(::TapeAD, layer::Layer, x)
    return layer(x), function (dy)
        layer.before_its_pullback()
        return ChainRulesCore.Tangent{Layer}(w = dy * transpose(x), b = vec(sum(dy; dims = 2))), transpose(layer.w) * dy
    end
end

function train(comm)
    started, buffer = Ref{UInt64}(0), Ref{Any}()
    first_bucket_reduced() = await(() -> bucket(buffer[], 1).reduce_end_ns > started[], "the first bucket")
    sizes = (48, 64, 64, 8)
    model = Tuple(overlap(Layer(fill(0.01f0, sizes[i+1], sizes[i]), zeros(Float32, sizes[i+1]), i == 1 ? first_bucket_reduced : () -> nothing))
                  for i in 1:3)
    dp = DataParallel(comm, model; bucket_count = 3, async = true)
    buffer[] = dp.buffer
    for step in 1:3
        started[] = time_ns()  # the clock of the library's times
        output, pullbacks = fill(Float32(step + local_rank(comm)), 48, 16), []
        for wrapped in dp.model  # what an AD makes of wrapped(output)
            output, pullback = ChainRulesCore.rrule(TapeAD(), MegaDP.run_layer, wrapped.layer, output)
            push!(pullbacks, pullback)
        end
        change = ones(Float32, size(output))
        for pullback in reverse(pullbacks)
            change = pullback(change)[3]
        end
        step!(dp)
        wait(dp)
        report(comm, "times", map(k -> (b = bucket(dp.buffer, k); [b.ready_ns, b.reduce_begin_ns, b.reduce_end_ns, b.sync_ns]), 1:buckets(dp)))
    end
    report(comm, "launched_in_backward", stats(dp.buffer).launched_in_backward)
    close(dp)
end

buckets(dp) = maximum(piece -> piece.bucket, owned(dp.buffer))

MegaDP.closing(train, Comm(MPI.Comm(parse(Int, ENV["MEGADP_RANK"]), parse(Int, ENV["MEGADP_NRANKS"]), ARGS[1])))
