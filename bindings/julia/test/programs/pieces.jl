# SPDX-License-Identifier: Apache-2.0
# Any number of ranks: AdamW as a function beside the library's own, alone and in one step with it, and what a failure on one rank does on all.
include("rank.jl")
include(joinpath(@__DIR__, "..", "formulas.jl"))

const LONG = (37, 470, 901, 5, 350)
const GROUP_VALUES = [NamedTuple(), (lr = 0.02, betas = (0.8, 0.95), eps = 1e-6, weight_decay = 0.0)]
const SAID = (lr = 0.01, weight_decay = 0.1, max_grad_norm = 1.0)
const OWN = (rule = :caller, state = [:exp_avg, :second])

group_of(param) = param % 3 == 0 ? 2 : 1

"Every second parameter is bf16."
function model(comm; keywords...)
    params = [Param("p$param", (LONG[param],); dtype = iseven(param) ? :bf16 : Float32, param_group = group_of(param)) for param in 1:length(LONG)]
    buffer = Buffer(comm, params; bucket_elements = 700, keywords...)
    foreach(param -> write!(buffer, param, weight_at.(1:LONG[param])), 1:length(LONG))
    return buffer
end

function put_all(buffer, comm, t)
    for param in length(LONG):-1:1
        put!(buffer, param, Float32[gradient_at(param, t, i + local_rank(comm)) for i in 1:LONG[param]])
    end
end

values_of(buffer) = [read!(buffer, param, zeros(Float32, LONG[param])) for param in 1:length(LONG)]

same_state(own, other) = all(1:length(LONG)) do param
    all(((:exp_avg, :exp_avg), (:exp_avg_sq, :second), (:master, :master))) do (name, named)
        MegaDP.state(own, param, name) == MegaDP.state(other, param, named)
    end
end

function beside(comm, sharding)
    own, buffer = model(comm; sharding = sharding), model(comm; sharding = sharding)
    adamw = Optimizer(own; SAID..., param_groups = GROUP_VALUES)
    optimizer = Optimizer(buffer; SAID..., OWN..., param_groups = GROUP_VALUES)
    same, clipped = true, 0
    for t in 1:50
        foreach(each -> put_all(each, comm, t), (own, buffer))
        expected, seen = step!(adamw; loss_scale = 2), 0
        found = step!(optimizer; loss_scale = 2) do piece
            seen += length(piece.range)
            same &= piece.optimizer == 1 && piece.step == t && length(piece.range) == length(piece.grad)
            adamw!(piece)
        end
        same &= found == expected && seen == mapreduce(each -> length(each.range), +, owned(buffer); init = 0) && values_of(own) == values_of(buffer)
        clipped += found.clipped
    end
    report(comm, "beside", Int(same && clipped > 10 && same_state(adamw, optimizer)))
    foreach(close, (own, buffer))
end

function together(comm, callers)
    own, buffer = model(comm), model(comm)
    adamw = Optimizer(own; SAID..., param_groups = [NamedTuple(), NamedTuple()])
    both = [Optimizer(buffer; SAID..., (k == callers ? OWN : NamedTuple())..., first_param_group = k) for k in 1:2]
    same = true
    for t in 1:50
        foreach(each -> put_all(each, comm, t), (own, buffer))
        step!(adamw)
        _, request = step_many!(both; async = true) do piece
            same &= piece.optimizer == callers == group_of(piece.param)
            adamw!(piece)
        end
        wait(request)
    end
    report(comm, "together", Int(same && values_of(own) == values_of(buffer)))
    foreach(close, (own, buffer))
end

"What a step ends with whose function throws on the last rank, after it has updated a piece."
function failed_step(optimizer, comm, t)
    mine = local_rank(comm) == total_workers(comm) - 1
    put_all(optimizer.buffer, comm, t)
    try
        step!(optimizer) do piece
            adamw!(piece)
            yield()
            mine && throw(DomainError(piece.param, "on purpose"))
        end
        return :nothing
    catch problem
        return problem isa DomainError ? (mine ? :thrown : :wrong) : problem.kind
    end
end

function failures(comm, folder)
    own, buffer = model(comm), model(comm)
    adamw = Optimizer(own; SAID..., param_groups = GROUP_VALUES)
    optimizer = Optimizer(buffer; SAID..., OWN..., param_groups = GROUP_VALUES)
    for t in 1:20
        if t == 7
            save_checkpoint(folder, optimizer)
            before = values_of(buffer)
            kinds = [failed_step(optimizer, comm, t)]
            kept = all(param -> values_of(buffer)[param] == before[param], (2, 4))  # bf16: nothing was rounded into it
            put_all(buffer, comm, t)
            problem = caught(() -> step!(adamw!, optimizer))
            push!(kinds, occursin("are not whole", problem.text) ? problem.kind : :other)
            report(comm, "failed", [kinds..., lost(comm) === nothing && kept ? "kept" : "lost"])
            zero_grad!(buffer)
            load_checkpoint!(folder, optimizer)
        end
        foreach(each -> put_all(each, comm, t), (own, buffer))
        step!(adamw)
        step!(adamw!, optimizer)
    end
    report(comm, "made good", Int(values_of(own) == values_of(buffer)))
    failed_step(optimizer, comm, 21)
    set_steps!(optimizer, 20)  # as it is
    put_all(buffer, comm, 21)
    report(comm, "goes on", step!(adamw!, optimizer).step)
    barrier(comm)
end

"Whole parameters by a function that needs all of each, which counts its steps in bytes of the owner's; a checkpoint has them."
function whole(comm, folder)
    params = [Param("p$param", (LONG[param],); sharding = :whole, cost = param) for param in 1:length(LONG)]
    buffer = Buffer(comm, params)
    create() = Optimizer(buffer; rule = :caller, lr = 0.5, param_states = (seen = Dict("p$param" => 8 for param in 1:4),))
    optimizer, same, pieces = create(), true, 0
    for t in 1:3
        if t == 3
            save_checkpoint(folder, optimizer)
            optimizer = create()
            load_checkpoint!(folder, optimizer)
        end
        foreach(param -> put!(buffer, param, fill(Float32(t), LONG[param])), 1:length(LONG))
        step!(optimizer) do piece
            seen = reinterpret(Int64, piece.param_states.seen)
            same &= piece.range == 1:LONG[piece.param] && length(seen) == (piece.param == 5 ? 0 : 1)
            seen .+= t
            same &= all(==(sum(1:t)), seen)
            piece.master .-= Float32(piece.lr) .* piece.grad ./ sqrt(sum(abs2, piece.grad))
            pieces += 1
        end
    end
    mine = [range.param for range in owned(buffer)]
    same &= pieces == 3 * length(mine) && all(param -> values_of(buffer)[param] ≈ fill(-1.5f0 / sqrt(Float32(LONG[param])), LONG[param]), 1:length(LONG))
    same &= all(param -> reinterpret(Int64, MegaDP.state(optimizer, param, :seen)) == (param in mine && param != 5 ? [6] : []), 1:length(LONG))
    report(comm, "whole", Int(same))
    close(buffer)
end

Comm() do comm
    whole(comm, joinpath(ARGS[1], "whole"))
    beside(comm, :zero1)
    beside(comm, :zero2)
    foreach(callers -> together(comm, callers), 1:2)
    failures(comm, ARGS[1])
end
