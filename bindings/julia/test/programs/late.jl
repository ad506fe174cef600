# SPDX-License-Identifier: Apache-2.0
# Two ranks: rank 1 comes to each collective when rank 0 has waited long enough inside the library to be asked for a Ctrl-C.
include("rank.jl")

function operations(comm, folder)
    rank = local_rank(comm)
    dp = DataParallel(comm, (w = zeros(Float32, 30),); rule = :sgd, average_decay = 0.5)
    caller = Optimizer(Buffer(comm, [Param("w", (30,))]); rule = :caller)
    grads = (w = ones(Float32, 30),)
    exchanged(from, to) = send_recv!(comm, [1.0], to, [0.0], from)
    return [("barrier", () -> barrier(comm)), ("allreduce!", () -> allreduce!(comm, [1.0])), ("bcast!", () -> bcast!(comm, [1.0])),
            ("reduce_scatter!", () -> reduce_scatter!(comm, ones(2), zeros(1))), ("allgather!", () -> allgather!(comm, [1.0], zeros(2))),
            ("alltoall!", () -> alltoall!(comm, ones(2), zeros(2))),
            ("reduce_scatter_v!", () -> reduce_scatter_v!(comm, ones(3), zeros(1 + rank), [1, 2])),
            ("allgather_v!", () -> allgather_v!(comm, ones(1 + rank), zeros(3), [1, 2])),
            ("alltoall_v!", () -> alltoall_v!(comm, ones(2), [1, 1], zeros(2), [1, 1])),
            ("send", () -> rank == 0 ? send(comm, ones(100_000), 1) : recv!(comm, zeros(100_000), 0)),
            ("recv!", () -> rank == 0 ? recv!(comm, [0.0], 1) : send(comm, [1.0], 0)), ("send_recv!", () -> exchanged(1 - rank, 1 - rank)),
            ("sync!", () -> (put!(dp, grads); sync!(dp.buffer))), ("grad_norm", () -> grad_norm(dp.buffer)),
            ("step!", () -> step!(dp.optimizer)), ("use_order", () -> use_order(dp.buffer)),
            ("step! by pieces", () -> (put!(caller.buffer, 1, ones(30)); step!(identity, caller))),
            ("bcast! of a buffer", () -> bcast!(dp.buffer)), ("verify", () -> verify(dp.buffer)),
            ("averaged", () -> averaged(() -> rank == 1 && sleep(0.1), dp.optimizer)),
            ("save_checkpoint", () -> save_checkpoint(folder, dp)),
            ("save_checkpoint, async", () -> wait(save_checkpoint(folder, dp; async = true))),
            ("load_checkpoint!", () -> load_checkpoint!(folder, dp))]
end

Comm(; timeout = 60) do comm
    for (name, call) in operations(comm, ARGS[1])
        local_rank(comm) == 1 && sleep(0.1)
        problem = caught(call)
        problem === nothing && continue
        report(comm, "failed", "$name: $(problem.text)")
        break
    end
    report(comm, "lost", lost(comm) === nothing ? nothing : lost(comm).text)
end
