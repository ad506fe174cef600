# SPDX-License-Identifier: Apache-2.0
# Two ranks: collectives with what the other rank has, whole models and data sets, a Ctrl-C while waiting, different registrations.
include("rank.jl")
using LinearAlgebra

function collectives(comm, rank, ranks)
    report(comm, "sum", allreduce!(comm, Float32[rank + 1, 10], +))
    report(comm, "mean", allreduce!(comm, Float64[rank, 1]))
    report(comm, "later", (request = allreduce!(comm, Float32[rank], max; async = true); wait(request); isready(request)) ? 1 : 0)
    report(comm, "gathered", allgather!(comm, Float32[rank], zeros(Float32, ranks)))
    report(comm, "scattered", reduce_scatter!(comm, Float32[1, 2], zeros(Float32, 1), +))
    report(comm, "exchanged", alltoall!(comm, Float32[10rank, 10rank + 1], zeros(Float32, 2)))
    report(comm, "broadcast", bcast!(comm, Int64[rank]; root = 1))
    report(comm, "ragged", allgather_v!(comm, fill(Float32(rank), 1 + rank), zeros(Float32, 3), [1, 2]))
    report(comm, "summed", reduce_scatter_v!(comm, Float32[1, 2, 3], zeros(Float32, 1 + rank), [1, 2], +))
    report(comm, "traded", alltoall_v!(comm, fill(Int64(rank), 3), [1, 2], zeros(Int64, 2 * (1 + rank)), [1 + rank, 1 + rank]))
    rank == 0 ? send(comm, Float32[5], 1) : report(comm, "received", recv!(comm, zeros(Float32, 1), 0))
    report(comm, "swapped", send_recv!(comm, Float32[rank], 1 - rank, zeros(Float32, 1), 1 - rank))
    report(comm, "refused", [caught(() -> send(comm, Float32[1], rank)).kind])
    part = split(comm, rank; key = 0)
    report(comm, "parts", total_workers(part))
    turned = split(comm, 0; key = -rank)
    report(comm, "world", [world_rank(part), world_rank(turned), world_rank(turned, 0), world_rank(turned, 1)])
end

function trees(comm, rank)
    tree = synchronize!!(comm, (a = fill(Float32(rank), 2), n = rank, flags = [rank == 1], t = transpose(fill(Float64(rank), 1, 2)),
                                s = Symmetric(fill(Float64(rank), 2, 2), :L), d = Diagonal([rank])); root = 1)
    report(comm, "synchronized", [sum(tree.a), tree.n, tree.flags[1] ? 1 : 0, sum(tree.t), sum(tree.s), sum(tree.d)])
    other = synchronize!!(comm, (r = rank:3rank, s = rank .+ (0.0:0.25:0.5), c = complex(rank, 2.0), z = fill(complex(1f0, rank), 2)); root = 1)
    report(comm, "ranges", [collect(other.r); collect(other.s); real(other.c); imag(other.z[2]); other.s isa AbstractRange ? 1 : 0])
    report(comm, "big", caught(() -> synchronize!!(comm, (n = big(rank),))).kind)
    grads = allreduce!(comm, (w = Float32[rank, 2], b = nothing, c = (Float64[4rank],)))
    report(comm, "reduced", [grads.w..., grads.c[1]...])
    differing_trees(comm, rank)
    report(comm, "part", collect(DistributedDataContainer(comm, 1:5)))
    report(comm, "even", collect(DistributedDataContainer(comm, 1:5; even = true)))
end

"What one rank has and the other not, of one length, would be taken for something else: it is named, nothing is written, and ranks go on."
function differing_trees(comm, rank)
    tied = [1.0, 2]
    for (call, one, other, places) in
        ((allreduce!, (a = [1f0, 2], b = nothing), (a = nothing, b = [3f0, 4]), ("'a'", "'b'")),
         (allreduce!, (w = [1.0], a = zeros(2, 3)), (w = [1.0], a = zeros(3, 2)), ("'a' (Float64 of size (2, 3)) on rank 0", "(3, 2)")),
         (allreduce!, (a = nothing,), (a = [1.0],), ("nothing more on rank 0", "'a'")),
         (allreduce!, (a = tied, b = tied, c = [1.0, 2]), (a = tied, b = [1.0, 2], c = tied), ("'b'", "array 1 again")),
         (synchronize!!, (a = [1.0], b = nothing), (a = nothing, b = [2.0]), ("'a'", "'b'")),
         (synchronize!!, (w = [1.0], n = 1), (w = [2.0], n = 1.0), ("'n' (Int64) on rank 0", "'n' (Float64) on rank 1")))
        tree = rank == 0 ? one : other
        before = deepcopy(tree)
        problem = caught(() -> call(comm, tree))
        good = problem !== nothing && problem.kind == :DESYNC && problem.rank == 1 && all(place -> occursin(place, problem.text), places)
        report(comm, "trees differ", good && tree == before ? 1 : string(problem))
    end
    report(comm, "trees agree", allreduce!(comm, (a = [1.0 + rank], n = rank), max).a)
end

"A buffer on a communicator makes steps without a grid or a sync; a pending barrier, and rank 1's parameters for all."
function steps(comm, rank)
    buffer = Buffer(comm, [Param("w", (2,))])
    fill!(param_view(buffer, "w"), rank)
    request = bcast!(buffer; root = 1, async = true)
    wait(request)
    meeting = barrier(comm; async = true)
    optimizer = MegaDP.Optimizer(buffer; lr = 0.5, betas = (0, 0))
    put!(buffer, "w", [rank, 2.0 - 4.0rank])
    wait(meeting)
    report(comm, "norm", step!(optimizer).grad_norm^2)
    report(comm, "stepped", round.(read!(buffer, "w", zeros(2)); digits = 4))
    return buffer, optimizer
end

"Rank 1 comes to each call only when another task of rank 0 has run, which it cannot unless rank 0 waits in slices."
function other_tasks_run(comm, rank, flag, buffer, optimizer)
    put!(buffer, 1, ones(2))
    for (k, call) in enumerate((() -> barrier(comm), () -> bcast!(buffer), () -> step!(optimizer)))
        rank == 0 ? @async(touch("$flag-$k")) : await(() -> isfile("$flag-$k"), "another task of rank 0")
        call()
        rank == 1 && rm("$flag-$k")
    end
    report(comm, "tasks", 1)
end

"Rank 0 waits for rank 1, which begins when rank 0 has been interrupted: the wait ends, and the collective goes on behind it."
function interrupted(comm, rank, flag)
    if rank == 0
        Base.exit_on_sigint(false)
        request = allreduce!(comm, ones(Float32, 1000), +; async = true)
        interrupted = try
            ccall(:kill, Cint, (Cint, Cint), getpid(), 2)
            wait(request)  # which cannot end before the file is there
            false
        catch problem
            problem isa InterruptException || rethrow()
            true
        end
        touch(flag)
        GC.gc()
        wait(request)
        report(comm, "interrupted", interrupted ? 1 : 0)
    else
        await(() -> isfile(flag), "rank 0 to be interrupted")
        allreduce!(comm, ones(Float32, 1000), +)
    end
end

function registrations(comm, rank)
    problem = caught(() -> Buffer(comm, [Param(rank == 0 ? "left" : "right", (3,))]))
    report(comm, "different", [problem.kind, occursin("left", problem.text) && occursin("right", problem.text) ? "both" : problem.text])
end

function missing_gradient(comm, rank)
    dp = DataParallel(comm, (a = ones(Float32, 2), b = ones(Float32, 2)))
    problem = caught(() -> step!(dp, (a = ones(2), b = rank == 1 ? nothing : ones(2))))
    report(comm, "missing", [problem.kind, problem.rank, problem.param, occursin("'b'", problem.text) ? "'b'" : problem.text])
    report(comm, "after", step!(dp, (a = ones(2), b = ones(2))).step)
end

"Each rank's gradient is rounded once, the sum is not; what was lost is in the next step's."
function sent_as_bf16(comm, rank)
    buffer = Buffer(comm, [Param("w", (1,))]; scaling = :sum, wire_dtype = :bf16)
    put!(buffer, 1, [rank == 0 ? 1.001 : 1.006])
    sync!(buffer)
    report(comm, "rounded", grad_norm(buffer))
    dp = DataParallel(comm, (w = ones(Float32, 1),); scaling = :sum, wire_dtype = :bf16, error_feedback = true)
    report(comm, "fed back", [step!(dp, (w = [1.003],)).grad_norm for _ in 1:2])
end

"Both ranks are told of the NaN of one."
function checked(comm, rank)
    dp = DataParallel(comm, (a = ones(Float32, 2), b = ones(Float32, 2)); check_finite = true)
    grads = (a = ones(2), b = [1.0, rank == 1 ? NaN : 1.0])
    problem = caught(() -> step!(dp, grads))
    report(comm, "checked", [problem.kind, problem.rank, problem.param, occursin("'b'", problem.text) ? "'b'" : problem.text])
    report(comm, "passed over", step!(dp, grads; loss_scale = 2).skipped ? 1 : 0)
end

Comm() do comm
    rank, ranks = local_rank(comm), total_workers(comm)
    collectives(comm, rank, ranks)
    trees(comm, rank)
    missing_gradient(comm, rank)
    sent_as_bf16(comm, rank)
    checked(comm, rank)
    other_tasks_run(comm, rank, ARGS[1], steps(comm, rank)...)
    registrations(comm, rank)
    interrupted(comm, rank, ARGS[1])
    GC.gc()
    barrier(comm)
end
