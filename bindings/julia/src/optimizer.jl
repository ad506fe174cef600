# SPDX-License-Identifier: Apache-2.0
# AdamW over the pieces that this rank owns.

const STATE_NAMES = Dict(:master => "master", :exp_avg => "exp_avg", :exp_avg_sq => "exp_avg_sq")

const NORMS = Dict(:l2 => Raw.MDP_NORM_L2, :inf => Raw.MDP_NORM_INF)

"""
    Optimizer(buffer; lr = 1e-3, betas = (0.9, 0.999), eps = 1e-8, weight_decay = 0.0, max_grad_norm = 0.0,
              max_grad_value = 0.0, norm = :l2, param_groups = [])

AdamW (decoupled weight decay) whose state is sharded over the data-parallel ranks. `max_grad_norm` scales gradients down to that global norm
(0: off), by `norm`, `:l2` or `:inf`; `max_grad_value` then clips each element. `param_groups` has a named tuple `(lr = …, weight_decay = …)` for each parameter group; what is left out of it is the optimizer's.
A number that is given is meant, also 0.

Collective over the world, with equal arguments; blocking, for at most the timeout. Throws `MegaDPError`: `:INVALID`, `:DESYNC`, and those of
a lost communicator.
"""
mutable struct Optimizer <: Handle
    slot::Slot
    holders::Threads.Atomic{Int}  # the optimizer itself and the views of its state: who is the last drops the library's
    buffer::Buffer
end
@handle Optimizer mdp_optimizer
destroy(optimizer::Optimizer, pointer::UInt) = let_go(optimizer.holders, pointer)

# A view's finalizer has to count: that it refers to the optimizer would not keep the collector from finalizing that.
function let_go(holders::Threads.Atomic{Int}, pointer)
    Threads.atomic_sub!(holders, 1) == 1 && Raw.mdp_optimizer_destroy(Ptr{Raw.mdp_optimizer}(pointer))
    return nothing
end

group_of(; lr = nothing, weight_decay = nothing) =
    Raw.mdp_param_group(; lr = something(lr, 0.0), weight_decay = something(weight_decay, 0.0),
                        flags = (lr === nothing ? 0 : Raw.MDP_PARAM_GROUP_SET_LR) |
                                (weight_decay === nothing ? 0 : Raw.MDP_PARAM_GROUP_SET_WEIGHT_DECAY))

function Optimizer(buffer::Buffer; lr = 1e-3, betas = (0.9, 0.999), eps = 1e-8, weight_decay = 0.0, max_grad_norm = 0.0,
                   max_grad_value = 0.0, norm = :l2, param_groups = [])
    eps == 0 && throw(invalid("eps is 0; it has to be from 1e-37 to 1e37"))
    listed = Raw.mdp_param_group[group_of(; group...) for group in param_groups]
    out = Ref{Ptr{Raw.mdp_optimizer}}(C_NULL)
    GC.@preserve listed begin
        config = Ref(Raw.mdp_optimizer_config(; rule = Raw.MDP_RULE_ADAMW, lr = lr, beta1 = betas[1], beta2 = betas[2], eps = eps,
                                              weight_decay = weight_decay, max_grad_norm = max_grad_norm, max_grad_value = max_grad_value,
                                              norm = choose(NORMS, "norm", norm),
                                              param_groups = isempty(listed) ? C_NULL : pointer(listed), param_group_count = length(listed),
                                              flags = Raw.MDP_OPTIMIZER_SET_LR | Raw.MDP_OPTIMIZER_SET_BETA1 | Raw.MDP_OPTIMIZER_SET_BETA2))
        check(Raw.mdp_optimizer_create(buffer, config, out))
    end
    return finalizer(close, Optimizer(Slot(UInt(out[])), Threads.Atomic{Int}(1), buffer))
end

"""
    set_param_group!(optimizer, k; lr = nothing, weight_decay = nothing)

Gives parameter group `k` (from 1) new values from the next step on; what is left out is the optimizer's. To be called alike on all ranks.
Local. Throws `MegaDPError`: `:INVALID`.
"""
function set_param_group!(optimizer::Optimizer, k::Integer; keywords...)
    k >= 1 || throw(invalid("group is $k; groups are counted from 1"))
    check(Raw.mdp_optimizer_set_param_group(optimizer, k - 1, Ref(group_of(; keywords...))))
end

"""
    step!(optimizer; lr = nothing, loss_scale = nothing, grad_divisor = nothing, report = true, async = false)

One step: `sync!` where it was not called, then the update. `lr` replaces the optimizer's from here on; gradients are divided by `loss_scale`, and
where that is given, a gradient that is not finite makes all ranks skip the step. They are divided by `grad_divisor` too, such as the number of
microbatches.

Returns a named tuple: `grad_norm` (of the whole reduced gradient, before clipping), `clip_factor`, `loss_scale`, `step` (taken so far),
`skipped`, `clipped`; or `nothing` with `report = false`. Without `async`, all parameters are whole then. With `async = true` returns
`(report, request)` while they are still gathered: `wait(buffer, i)` or the request waits for them.

Collective over the world; waits in slices of 50 ms, but for the norm in one. Throws `MegaDPError`: `:STATE` (as `sync!`),
`:NUMERIC` (a gradient is not finite, nothing has changed), and those of a lost communicator.
"""
function step!(optimizer::Optimizer; lr = nothing, loss_scale = nothing, grad_divisor = nothing, report = true, async = false)
    loss_scale === nothing || loss_scale > 0 || throw(invalid("loss_scale is $loss_scale; it has to be more than 0"))
    grad_divisor === nothing || grad_divisor > 0 || throw(invalid("grad_divisor is $grad_divisor; it has to be more than 0"))
    live(optimizer)
    isopen(optimizer.buffer) && sync_for_step!(optimizer.buffer, loss_scale !== nothing)
    config = Ref(Raw.mdp_step_config(; lr = something(lr, 0.0), loss_scale = something(loss_scale, 0.0), stream = stream_for(optimizer.buffer),
                                     flags = lr === nothing ? 0 : Raw.MDP_STEP_SET_LR, grad_divisor = something(grad_divisor, 0.0)))
    found = Ref(Raw.mdp_step_report())
    request = submit(out -> Raw.mdp_optimizer_step(optimizer, config, report ? found : C_NULL, out), optimizer)
    async || wait(request)
    answer = report ? named_step(found[]) : nothing
    return async ? (answer, request) : answer
end

"The step would do it, but in one piece, deaf to other tasks and Ctrl-C. `skips`: gradients that are not finite make all ranks skip it."
function sync_for_step!(buffer, skips)
    try
        sync!(buffer)
    catch problem
        skips && problem isa MegaDPError && problem.kind == :NUMERIC || rethrow()
    end
end

named_step(found) = (grad_norm = found.grad_norm, clip_factor = found.clip_factor, loss_scale = found.loss_scale, step = Int(found.step),
                     skipped = found.flags & Raw.MDP_STEPPED_SKIPPED != 0, clipped = found.flags & Raw.MDP_STEPPED_CLIPPED != 0)

"""
    steps(optimizer, i) -> Int

How many steps parameter `i` (or of that name) has taken part in; not counted are skipped ones, and those for which all ranks had skipped the parameter. Waits
for the last step. Local. Throws `MegaDPError`: `:INVALID`, `:STATE` (frozen).
"""
function steps(optimizer::Optimizer, i::Which)
    count = Ref{UInt64}(0)
    check(Raw.mdp_optimizer_steps(optimizer, number_of(optimizer.buffer, i), count))
    return Int(count[])
end

"""
    set_steps!(optimizer, taken, steps = nothing)

Goes on as after `taken` steps, from which reports count on, and of which parameter `i` has taken part in `steps[i]`; without `steps`, each in
all. With [`state`](@ref), to restore what was saved; to be called alike on all ranks. Waits for the last step. Local. Throws `MegaDPError`:
`:INVALID`.
"""
function set_steps!(optimizer::Optimizer, taken::Integer, steps = nothing)
    taken >= 0 || throw(invalid("taken is $taken; it has to be 0 or more"))
    steps === nothing && return check(Raw.mdp_optimizer_set_steps(optimizer, taken, C_NULL, 0))
    for (i, each) in enumerate(steps)
        each >= 0 || throw(invalid("steps[$i] is $each; it has to be 0 or more"; param = i))
    end
    check(Raw.mdp_optimizer_set_steps(optimizer, taken, convert(Vector{UInt64}, steps), length(steps)))
end

"""
    info(optimizer) -> String

The rule, its values, parameter groups, steps taken and what [`state`](@ref) knows, as one line of JSON. Waits for the last step. Local.
"""
info(optimizer::Optimizer) = text_of((bytes, capacity, needed) -> Raw.mdp_optimizer_info(optimizer, bytes, capacity, needed))

"""
    state(optimizer, i, name) -> Vector{Float32}

The owned part of parameter `i`'s `:master`, `:exp_avg` or `:exp_avg_sq`, as a view: it may be written between steps and before the
first, and is valid while it lives; a master holds what is written into it until its parameter is written again. Empty where this rank owns nothing of it; where it begins is told by [`owned`](@ref). Waits for the last step. Local. Throws
`MegaDPError`: `:INVALID`, `:STATE` (frozen).
"""
function state(optimizer::Optimizer, i::Which, name::Symbol)
    tensor = Ref(Raw.mdp_tensor())
    check(Raw.mdp_optimizer_state(optimizer, number_of(optimizer.buffer, i), choose(STATE_NAMES, "name", name), tensor))
    holders, pointer = optimizer.holders, live(optimizer)
    Threads.atomic_add!(holders, 1)
    return wrap(tensor[], false, _ -> let_go(holders, pointer))
end
