# SPDX-License-Identifier: Apache-2.0
# Three wrapped layers in several buckets. The first layer's pullback, the last of backward, does not go on before it has seen the bucket of
# the last layer reduced by all ranks: so that one was launched, and finished, while backward was going on.
include("rank.jl")
include("tape.jl")

function train(comm)
    sizes = (48, 64, 64, 8)
    layers = Tuple((w = fill(0.01f0, sizes[i], sizes[i+1]), b = zeros(Float32, sizes[i+1])) for i in 1:3)
    dp = DataParallel(comm, layers; bucket_count = 3, async = true)
    for step in 1:3
        started = time_ns()  # the clock of the library's times
        tape, output = Tape(), fill(Float32(step + local_rank(comm)), 48, 16)
        push!(tape.pullbacks, dy -> (nothing, dy))
        for (i, parameters) in enumerate(dp.model)
            output = forward!(tape, Dense(i < 3, parameters), output, true)
            if i == 1
                push!(tape.pullbacks, function (dy)
                    await(() -> bucket(dp.buffer, 1).reduce_end_ns > started, "the first bucket")
                    return nothing, dy
                end)
            end
        end
        backward!(tape, ones(Float32, size(output)))
        step!(dp)
        wait(dp)
        report(comm, "times", [[b.ready_ns, b.reduce_begin_ns, b.reduce_end_ns, b.sync_ns] for b in map(k -> bucket(dp.buffer, k), 1:buckets(dp))])
    end
    report(comm, "launched_in_backward", stats(dp.buffer).launched_in_backward)
    close(dp)
end

buckets(dp) = maximum(piece -> piece.bucket, owned(dp.buffer))

Comm(train)
