# SPDX-License-Identifier: Apache-2.0
# Workers of Distributed, the standard library's, as ranks: no launcher, no address, no port.
#
#     julia --project=bindings/julia bindings/julia/examples/distributed.jl [RANKS]
using Distributed

const ranks = isempty(ARGS) ? 3 : parse(Int, ARGS[1])
addprocs(ranks; exeflags = `--startup-file=no --project=$(Base.active_project())`)
@everywhere using MegaDP

"Gives every rank the bytes of all, as often as they ask."
function serve(up, down)
    while true
        parts = Vector{Vector{UInt8}}(undef, length(down))
        for _ in down
            rank, bytes = take!(up)
            parts[rank + 1] = bytes
        end
        foreach(channel -> put!(channel, parts), down)
    end
end

@everywhere function be_a_rank(rank, size, up, down)
    gather(bytes) = (put!(up, (rank, bytes)); take!(down))
    Comm(bootstrap = gather, rank = rank, size = size, timeout = 120) do comm
        sum = [Float32(rank)]
        allreduce!(comm, sum, +)
        return "rank $(local_rank(comm)) of $(total_workers(comm)), sum $(sum[1])"
    end
end

up = RemoteChannel(() -> Channel{Tuple{Int,Vector{UInt8}}}(ranks))
down = [RemoteChannel(() -> Channel{Vector{Vector{UInt8}}}(1)) for _ in 1:ranks]
@async serve(up, down)
answers = [remotecall(be_a_rank, worker, i - 1, ranks, up, down[i]) for (i, worker) in enumerate(workers())]
foreach(println, map(fetch, answers))
rmprocs(workers())
