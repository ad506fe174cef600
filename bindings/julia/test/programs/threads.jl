# SPDX-License-Identifier: Apache-2.0
# One thread trains over ranks of other nodes, the other makes garbage: the collector stops both, by the signals that UCX would take.
include("rank.jl")

const stop = Threads.Atomic{Bool}(false)
const made = Threads.Atomic{Int}(0)

function train(comm)
    dp = DataParallel(comm, (w = zeros(Float32, 64, 64), b = zeros(Float32, 64)); bucket_count = 2, lr = 0.01)
    sum_of_all = 0.0
    for step in 1:200
        answer = step!(dp, (w = fill(Float32(local_rank(comm)), 64, 64), b = ones(Float32, 64)))
        sum_of_all = sum(allreduce!(comm, Float64[local_rank(comm) + 1], +))
        step % 20 == 0 && GC.gc(false)
        step == 200 && report(comm, "trained", [answer.step, Int(sum_of_all)])
    end
    verify(dp.buffer)
end

"Small arrays and exceptions, until the training is over."
function make_garbage()
    while !stop[]
        Threads.atomic_add!(made, length([zeros(i % 100) for i in 1:10_000]) > 0 ? 1 : 0)
        try
            error("thrown and caught")
        catch
        end
        GC.safepoint()
    end
end

Comm(timeout = 120) do comm
    report(comm, "threads", Threads.nthreads())
    before = Base.gc_num().pause
    Threads.@threads for i in 1:2
        if i == 1
            try
                train(comm)
            finally
                stop[] = true
            end
        else
            make_garbage()
        end
    end
    report(comm, "ucx", any(line -> occursin("libucp.so", line), eachline("/proc/self/maps")) ? 1 : 0)
    report(comm, "collections", Base.gc_num().pause - before)
    report(comm, "made", made[])
end
