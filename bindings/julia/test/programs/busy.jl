# SPDX-License-Identifier: Apache-2.0
# Two ranks. On rank 0 one thread is in a call on the buffer that waits for rank 1, while the other takes a step, which is refused: it is taken later.
include("rank.jl")

"Rank 0's step while the buffer is in use: what it is refused with. Rank 1 makes its call when the file is there, and so ends the use."
function refused_step(dp, grads, flag)
    array = zeros(Float32, 2)
    await(() -> caught(() -> read!(dp.buffer, 1, array)) !== nothing, "the other thread's call")
    problem = caught(() -> step!(dp, grads))
    touch(flag)
    return problem
end

function both_threads(dp, grads, flag)
    found = Ref{Any}(nothing)
    Threads.@threads for i in 1:2
        i == 1 ? found[] = refused_step(dp, grads, flag) : verify(dp.buffer)
    end
    return found[]
end

Comm(timeout = 120) do comm
    rank = local_rank(comm)
    dp = DataParallel(comm, (w = zeros(Float32, 2), v = overlap((w = zeros(Float32, 2),))); rule = :sgd, lr = 1.0)
    for (k, again) in enumerate((nothing, :same))
        grads = (w = [k, 2.0k], v = (layer = (w = [1.0, 1],),))
        flag = "$(ARGS[1])-$k"
        MegaDP.forward_begins(dp.model.v.layer)
        MegaDP.backward_ends(dp.model.v.layer, grads.v.layer)
        if rank == 0
            problem = both_threads(dp, grads, flag)
            report(comm, "refused", [problem.kind, occursin("in use by", problem.text)])
        else
            await(() -> isfile(flag), "rank 0's step to be refused")
            verify(dp.buffer)
        end
        step!(dp, rank == 0 && again === nothing ? nothing : grads)
        report(comm, "stepped", [dp.model.w; dp.model.v.layer.w])
        barrier(comm)
        rank == 0 && rm(flag)
    end
end
