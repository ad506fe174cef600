# SPDX-License-Identifier: Apache-2.0
# Rank 1 is killed between two steps; rank 0 is told who died, by whatever it does next, and everything can still be closed.
include("rank.jl")

function lose_a_peer(comm)
    dp = DataParallel(comm, (w = ones(Float32, 1000),))
    step!(dp, (w = ones(Float32, 1000),))
    barrier(comm)
    local_rank(comm) == 1 && ccall(:kill, Cint, (Cint, Cint), getpid(), 9)
    problem = caught(() -> step!(dp, (w = ones(Float32, 1000),)))
    report(comm, "problem", [problem.kind, problem.rank, problem.text])
    again = caught(() -> allreduce!(comm, ones(2)))
    report(comm, "again", [again.kind, again.rank])
    report(comm, "lost", [lost(comm).kind, lost(comm).rank])
    report(comm, "saved", sum(dp.model.w))  # what is left can still be read
    close(dp)
end

Comm(lose_a_peer; timeout = 120)
