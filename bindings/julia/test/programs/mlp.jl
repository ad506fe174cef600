# SPDX-License-Identifier: Apache-2.0
# The model of tests/bindings/README.md on the digits; every rank reports the losses of all steps: those of a training whose gradients are
# handed over at the end of backward, and of one whose layers hand over their own.
include("rank.jl")
include("tape.jl")

const STEPS, BATCH = 100, 64

function initial_weights()
    state = UInt32(1)
    function draw(rows, columns)
        drawn = Matrix{Float32}(undef, rows, columns)
        for i in 1:rows, j in 1:columns
            state = state * 0x0019660d + 0x3c6ef35f
            drawn[i, j] = (state / 2.0^32 - 0.5) * 2 / sqrt(rows)
        end
        return drawn
    end
    return ((w = draw(64, 32), b = zeros(Float32, 32)), (w = draw(32, 10), b = zeros(Float32, 10)))
end

function read_digits(path)
    lines = [parse.(Int, split(line, ",")) for line in eachline(path)]
    return Float32.(hcat((line[1:64] for line in lines)...) ./ 16), [line[65] for line in lines]
end

function train(comm, path, overlapped)
    x, labels = read_digits(path)
    dp = DataParallel(comm, initial_weights(); lr = 1e-2, weight_decay = 0.01, bucket_count = 2, async = overlapped)
    rank, ranks = local_rank(comm), total_workers(comm)
    mine = div(BATCH * rank, ranks):div(BATCH * (rank + 1), ranks)-1
    losses = Float64[]
    for step in 0:STEPS-1
        rows = [(BATCH * step + k) % length(labels) + 1 for k in mine]
        tape, output = Tape(), x[:, rows]
        for (layer, relu) in zip(dp.model, (true, false))
            output = forward!(tape, Dense(relu, layer), output, overlapped)
        end
        loss, d = cross_entropy(output, labels[rows])
        step!(dp, Tuple(backward!(tape, d)))
        append!(losses, allreduce!(comm, [loss]))
    end
    verify(dp.buffer)
    report(comm, overlapped ? "overlapped" : "plain", losses)
    close(dp)
end

Comm() do comm
    train(comm, ARGS[1], false)
    train(comm, ARGS[1], true)
end
