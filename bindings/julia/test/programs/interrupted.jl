# SPDX-License-Identifier: Apache-2.0
# Ctrl-C while rank 0 is inside the library, in calls that wait in one piece: creating a communicator, waiting for a step, and a split, which
# ends the communicator on both ranks; and while a function of rank 0 updates, or computes a block of attention, which loses nothing.
include("rank.jl")

"What `body` throws when a Ctrl-C comes a moment after it has begun."
function interrupted(body)
    Base.exit_on_sigint(false)
    run(`sh -c "sleep 0.3; kill -INT $(getpid())"`; wait = false)
    try
        body()
        return "nothing"
    catch problem
        return string(typeof(problem))
    end
end

function one_is_interrupted(comm, flag)
    buffer = Buffer(comm, [Param("w", (2,))])
    optimizer = MegaDP.Optimizer(buffer)
    put!(buffer, 1, ones(2))
    sync!(buffer)
    if local_rank(comm) == 0
        step!(optimizer; async = true, report = false)
        report(comm, "waited", interrupted(() -> MegaDP.state(optimizer, 1, :master)))
        touch(flag)
        wait(buffer)
        report(comm, "split", interrupted(() -> split(comm, 0)))
        report(comm, "lost", [lost(comm).kind, lost(comm).rank])
    else
        await(() -> isfile(flag), "rank 0 to be interrupted")
        step!(optimizer)
        await(() -> lost(comm) !== nothing, "the news of rank 0")
        report(comm, "lost", [lost(comm).kind, lost(comm).rank])
    end
end

# Computes, as an update does: a Ctrl-C gets into `sleep` too, but one that comes while Julia compiles may be lost there.
function compute_long()
    until = time() + 200
    while time() < until
        GC.safepoint()
    end
end

function an_update_is_interrupted(comm)
    optimizer = MegaDP.Optimizer(Buffer(comm, [Param("w", (2000,))]); rule = :caller)
    long = Ref(false)
    update(_) = long[] && local_rank(comm) == 0 && compute_long()
    put!(optimizer.buffer, 1, ones(2000))
    step!(update, optimizer)  # so that all of it is compiled
    long[] = true
    put!(optimizer.buffer, 1, ones(2000))
    if local_rank(comm) == 0
        report(comm, "updated", interrupted(() -> step!(update, optimizer)))
    else
        report(comm, "updated", caught(() -> step!(update, optimizer)).kind)
    end
    set_steps!(optimizer, 0)
    put!(optimizer.buffer, 1, ones(2000))
    report(comm, "went on", step!(identity, optimizer).step)
end

function an_attention_is_interrupted(comm)
    long = Ref(false)
    attention = CpAttention(comm) do block
        long[] && local_rank(comm) == 0 && compute_long()
        MegaDP.plain_attention(block)
    end
    attend() = attention(ntuple(_ -> ones(Float32, 2, 2, 3, 1), 3)...)
    attend()  # so that all of it is compiled
    long[] = true
    report(comm, "attended", local_rank(comm) == 0 ? interrupted(attend) : caught(attend).kind)
    long[] = false
    report(comm, "attends on", attend() == ones(2, 2, 3, 1))
end

Comm(; timeout = 200) do comm
    an_update_is_interrupted(comm)
    an_attention_is_interrupted(comm)
    if local_rank(comm) == 0
        report(comm, "created", interrupted(() -> Comm(id = unique_id(), rank = 0, size = 2, timeout = 200)))
        report(comm, "gathered", interrupted(() -> Comm(bootstrap = mine -> (sleep(200); [mine, mine]), rank = 0, size = 2, timeout = 200)))
    end
    one_is_interrupted(comm, ARGS[1])
end
