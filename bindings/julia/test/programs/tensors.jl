# SPDX-License-Identifier: Apache-2.0
# Two ranks save arrays that differ, which is refused, and then those of one of them.
include("rank.jl")

Comm() do comm
    dp = DataParallel(comm, (w = zeros(Float32, 2),))
    mean = fill(Float32(local_rank(comm)), 3)
    save() = caught(() -> save_checkpoint(ARGS[1], dp; tensors = Dict("mean" => mean)))
    problem = save()
    report(comm, "differ", problem === nothing ? ["nothing", false] : [problem.kind, occursin("mean", problem.text)])
    bcast!(comm, mean)
    problem = save()
    report(comm, "same", problem === nothing ? "nothing" : problem.text)
end
