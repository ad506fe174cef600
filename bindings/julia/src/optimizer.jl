# SPDX-License-Identifier: Apache-2.0
# Update rules over the pieces that this rank owns.

const STATE_NAMES = Dict(:master => "master", :exp_avg => "exp_avg", :exp_avg_sq => "exp_avg_sq", :momentum_buffer => "momentum_buffer",
                         :average => "average")

const NORMS = Dict(:l2 => Raw.MDP_NORM_L2, :inf => Raw.MDP_NORM_INF)

const STATE_DTYPES = Dict(:f32 => Raw.MDP_DTYPE_F32, :bf16 => Raw.MDP_DTYPE_BF16)

const RULES = Dict(:adamw => Raw.MDP_RULE_ADAMW, :adam => Raw.MDP_RULE_ADAM, :sgd => Raw.MDP_RULE_SGD,
                   :sgd_momentum => Raw.MDP_RULE_SGD_MOMENTUM, :sgd_nesterov => Raw.MDP_RULE_SGD_NESTEROV, :lion => Raw.MDP_RULE_LION,
                   :caller => Raw.MDP_RULE_CALLER)

"""
    Optimizer(buffer; rule = :adamw, lr = nothing, betas = nothing, eps = nothing, momentum = nothing, weight_decay = nothing,
              max_grad_norm = 0.0, max_grad_value = 0.0, norm = :l2, param_groups = [], first_param_group = nothing, state = [], average_decay = 0.0,
              state_dtype = :f32, stochastic_state = false, no_master = false, seed = 0, check_update = false, param_states = (;))

An update rule whose state is sharded over the data-parallel ranks: `:adamw` (decoupled weight decay), `:adam` (L2), `:sgd`, `:sgd_momentum` and
`:sgd_nesterov` (L2), `:lion` (decoupled), `:caller` (what a function does, which [`step!`](@ref) takes). What is not said is `lr` 1e-3 (`:lion` 1e-4), `betas` (0.9, 0.999) (`:lion` (0.9, 0.99)), `eps` 1e-8,
`momentum` 0.9 and no weight decay; what the rule has not is not to be said. With Optimisers.jl loaded `rule` may be one of its rules, whose values
keywords replace: the library's own where the formulas are the same, otherwise `apply!` on pieces, if it is [`MegaDP.elementwise`](@ref).

With `:caller`, `state` names the arrays that it keeps for each element, Float32 and zero at first, at most 4: they are sharded and checkpointed as
those of any rule. `param_states` names what it keeps of whole parameters (`sharding` of [`Param`](@ref)), bytes of any number, at most 4 names:
`(factors = Dict("weight" => 4096),)`, or `(factors = [4096, 0],)` by number; their owner has them, zero at first, and checkpoints. With `check_update`, to debug, copies of each piece's two halves are handed out behind it, and a step that makes anything else of
them fails.

`max_grad_norm` scales gradients down to that global norm (0: off), by `norm`, `:l2` or `:inf`; `max_grad_value` then clips each element.
`param_groups` has a named tuple `(lr = …, weight_decay = …, betas = …, eps = …, momentum = …)` for each parameter group; what is left out of it is
the optimizer's. With `first_param_group` the optimizer has but the groups from that one (from 1) on, as many as are listed: parameters of others
are other optimizers', and [`step_many!`](@ref) steps them together. A number that is given is meant, also 0. With `average_decay`, such as 0.999, an
exponential moving average of the parameters is kept: [`averaged`](@ref).

What the rule keeps is of `state_dtype`, `:f32` or `:bf16`; with `stochastic_state` it is rounded stochastically, not to nearest. With `no_master`
bf16 parameters have no fp32 masters and are rounded stochastically. `seed` is that rounding's, whose bits are the same on any number of ranks.

Collective over the world, with equal arguments; blocking, for at most the timeout. Throws `MegaDPError`: `:INVALID`, `:DESYNC`, and those of
a lost communicator.
"""
mutable struct Optimizer <: Handle
    slot::Slot
    holders::Threads.Atomic{Int}  # the optimizer itself and the views of its state: who is the last drops the library's
    buffer::Buffer
    names::Union{Vector{Symbol},Nothing}  # with the rule :caller: of its state
    kept::Vector{Symbol}                  # the names of its param_states
    update::Any                           # what updates pieces, where no function of a step's does
end
@handle Optimizer mdp_optimizer
Base.deepcopy_internal(optimizer::Optimizer, ::IdDict) = not_copied(optimizer)
destroy(optimizer::Optimizer, pointer::UInt) = let_go(optimizer.holders, pointer)

# A view's finalizer has to count: that it refers to the optimizer would not keep the collector from finalizing that.
function let_go(holders::Threads.Atomic{Int}, pointer)
    Threads.atomic_sub!(holders, 1) == 1 && Raw.mdp_optimizer_destroy(Ptr{Raw.mdp_optimizer}(pointer))
    return nothing
end

flags_of(values...) = reduce(|, (flag for (value, flag) in values if value !== nothing); init = 0)

function betas_of(betas)
    betas === nothing && return (0.0, 0.0)
    length(betas) == 2 || throw(invalid("betas is $betas; it has to be two numbers"))
    return (betas[1], betas[2])
end

eps_of(eps) = eps == 0 ? throw(invalid("eps is 0; it has to be from 1e-37 to 1e37")) : something(eps, 0.0)

function group_of(; lr = nothing, weight_decay = nothing, betas = nothing, eps = nothing, momentum = nothing)
    beta1, beta2 = betas_of(betas)
    return Raw.mdp_param_group(; lr = something(lr, 0.0), weight_decay = something(weight_decay, 0.0), beta1 = beta1, beta2 = beta2,
                               eps = eps_of(eps), momentum = something(momentum, 0.0),
                               flags = flags_of((lr, Raw.MDP_PARAM_GROUP_SET_LR), (weight_decay, Raw.MDP_PARAM_GROUP_SET_WEIGHT_DECAY),
                                                (betas, Raw.MDP_PARAM_GROUP_SET_BETA1 | Raw.MDP_PARAM_GROUP_SET_BETA2),
                                                (momentum, Raw.MDP_PARAM_GROUP_SET_MOMENTUM)))
end

"Keywords for a rule of another package's; an extension knows those of Optimisers.jl."
values_of(rule) = throw(invalid("rule is $(repr(rule)); it can be $(join(map(repr, sort!(collect(keys(RULES)))), ", "))" *
                                ", or with Optimisers.jl loaded one of its rules"))

Optimizer(buffer::Buffer; rule = :adamw, keywords...) =
    rule isa Symbol ? create_optimizer(buffer, choose(RULES, "rule", rule); keywords...) :
    Optimizer(buffer; merge(values_of(rule), (; keywords...))...)

function create_optimizer(buffer, rule; lr = nothing, betas = nothing, eps = nothing, momentum = nothing, weight_decay = nothing,
                          max_grad_norm = 0.0, max_grad_value = 0.0, norm = :l2, param_groups = [], first_param_group = nothing, state = [], average_decay = 0.0, update = nothing,
                          state_dtype = :f32, stochastic_state = false, no_master = false, seed = 0, check_update = false,
                          param_states = (;))
    refuse_values(update, said_names(; lr = lr, betas = betas, eps = eps, momentum = momentum, weight_decay = weight_decay))
    foreach(group -> refuse_values(update, said_names(; group...)), param_groups)
    lines = lines_of(state)
    kept = kept_bytes(buffer, param_states)
    listed_kept = Raw.mdp_param_state[Raw.mdp_param_state(; name = pointer(name), bytes = pointer(bytes)) for (name, bytes) in kept]
    listed = Raw.mdp_param_group[group_of(; group...) for group in param_groups]
    first_group = something(first_param_group, 1)
    1 <= first_group <= typemax(Int32) || throw(invalid("first_param_group is $first_group; groups are counted from 1"))
    beta1, beta2 = betas_of(betas)
    out = Ref{Ptr{Raw.mdp_optimizer}}(C_NULL)
    GC.@preserve listed lines kept listed_kept begin
        config = Ref(Raw.mdp_optimizer_config(; rule = rule, lr = something(lr, 0.0), beta1 = beta1, beta2 = beta2, eps = eps_of(eps),
                                              weight_decay = something(weight_decay, 0.0), max_grad_norm = max_grad_norm,
                                              max_grad_value = max_grad_value, norm = choose(NORMS, "norm", norm),
                                              param_groups = isempty(listed) ? C_NULL : pointer(listed), param_group_count = length(listed),
                                              first_param_group = first_group - 1, momentum = something(momentum, 0.0),
                                              average_decay = average_decay, state = isempty(lines) ? C_NULL : pointer(lines), seed = seed,
                                              param_states = isempty(listed_kept) ? C_NULL : pointer(listed_kept),
                                              param_state_count = length(listed_kept),
                                              state_dtype = choose(STATE_DTYPES, "state_dtype", state_dtype),
                                              flags = flags_of((lr, Raw.MDP_OPTIMIZER_SET_LR), (momentum, Raw.MDP_OPTIMIZER_SET_MOMENTUM),
                                                               (betas, Raw.MDP_OPTIMIZER_SET_BETA1 | Raw.MDP_OPTIMIZER_SET_BETA2),
                                                               (first_param_group, Raw.MDP_OPTIMIZER_SOME_GROUPS),
                                                               (stochastic_state ? 1 : nothing, Raw.MDP_OPTIMIZER_STOCHASTIC_STATE),
                                                               (no_master ? 1 : nothing, Raw.MDP_OPTIMIZER_NO_MASTER),
                                                               (check_update ? 1 : nothing, Raw.MDP_OPTIMIZER_CHECK_UPDATE))))
        check(Raw.mdp_optimizer_create(buffer, config, out))
    end
    names = rule == Raw.MDP_RULE_CALLER ? Symbol[Symbol(name) for name in state] : nothing
    kept_names = Symbol[Symbol(name) for (name, _) in kept]
    return finalizer(close, Optimizer(Slot(UInt(out[])), Threads.Atomic{Int}(1), buffer, names, kept_names, update))
end

"""
    set_param_group!(optimizer, k; lr = nothing, weight_decay = nothing, betas = nothing, eps = nothing, momentum = nothing)

Gives parameter group `k` (from 1) new values from the next step on; what is left out is the optimizer's. To be called alike on all ranks.
Local. Throws `MegaDPError`: `:INVALID`.
"""
function set_param_group!(optimizer::Optimizer, k::Integer; keywords...)
    k >= 1 || throw(invalid("group is $k; groups are counted from 1"))
    refuse_values(optimizer.update, said_names(; keywords...))
    check(Raw.mdp_optimizer_set_param_group(optimizer, k - 1, Ref(group_of(; keywords...))))
end

"""
    step!(optimizer; lr = nothing, loss_scale = nothing, grad_divisor = nothing, unchecked = false, report = true, async = false)
    step!(f, optimizer; …)

One step: `sync!` where it was not called, then the update. `lr` replaces the optimizer's from here on; gradients are divided by `loss_scale`, and
where that is given, a gradient that is not finite makes all ranks skip the step. They are divided by `grad_divisor` too, such as the number of
microbatches. With `unchecked` no norm is computed, and what is not finite spreads; `:INVALID` with clipping, a `loss_scale`, a [`Scaler`](@ref) or
the rule `:caller`. On one node, with `overlap = false` and unless `sync!` came before, on all ranks or none, gradients are then reduced, parameters
updated and gathered in one pass over memory.

Returns a named tuple: `grad_norm` (of the whole reduced gradient, before clipping), `clip_factor`, `loss_scale`, `step` (taken so far),
`skipped`, `clipped`, `unchecked` (`grad_norm` is NaN then); or `nothing` with `report = false`. Without `async`, all parameters are whole then. With `async = true` returns
`(report, request)` while they are still gathered: `wait(buffer, i)` or the request waits for them.

With the rule `:caller`, `f(piece)` is called for each piece that this rank owns of a parameter, unless the step is skipped. A piece is a named
tuple: `param` and `range` as in [`owned`](@ref), `step` (that the parameter takes part in, from 1), `lr`, `betas`, `eps`, `weight_decay` and `momentum` of
its group, `optimizer` (its number in the list of [`step_many!`](@ref)), and vectors of Float32, on a device that device's: `master` and those of
`state`, by name or number, to be updated; `grad`, divided and clipped. `param_states` has vectors of UInt8 by name, of the parameters that have
any, for `reinterpret(Float32, …)`. They are for the call: not to be kept. When all ranks are done, masters are
rounded into parameters, which are gathered. Where `f` throws on any rank, the step fails on all, by that exception here and `:ABORTED` elsewhere,
and ranks go on together: masters and state may have changed, and steps are refused until a checkpoint is loaded or [`set_steps!`](@ref) called.

    step!(optimizer) do piece
        @. piece.state.sum += piece.grad^2  # AdaGrad
        @. piece.master -= Float32(piece.lr) * piece.grad / (sqrt(piece.state.sum) + 1f-8)
    end

Collective over the world; waits in slices of 50 ms, but for the norm in one, and with `f` for the other ranks'. Throws `MegaDPError`: `:STATE` (as
`sync!`; an update failed before), `:NUMERIC` (a gradient is not finite, and there is neither `loss_scale` nor a [`Scaler`](@ref); nothing has
changed), `:ABORTED` (see above), and those of a lost communicator.
"""
step!(optimizer::Optimizer; keywords...) = step_listed(nothing, [optimizer]; keywords...)
step!(f::Function, optimizer::Optimizer; keywords...) = step_listed(f, [optimizer]; keywords...)

"""
    step_many!(optimizers; loss_scale = nothing, grad_divisor = nothing, unchecked = false, report = true, async = false)
    step_many!(f, optimizers; …)

One step of several optimizers of one buffer, each with parameter groups of its own (`first_param_group` of [`Optimizer`](@ref)): one `sync!`,
norm, skip decision and report, which are the first one's, as is the scaler. They clip alike, and have their learning rates from
[`set_param_group!`](@ref). `f` updates the pieces of those whose rule is `:caller`; `piece.optimizer` is their number in the list. Otherwise as
[`step!`](@ref). Collective over the world, with the same list. Throws `MegaDPError` also `:INVALID`: one of another buffer; a trained parameter
whose group none or two of them have; an `lr`.
"""
step_many!(optimizers; keywords...) = step_listed(nothing, Optimizer[optimizers...]; keywords...)
step_many!(f::Function, optimizers; keywords...) = step_listed(f, Optimizer[optimizers...]; keywords...)

"What all steps do; `update(config)` comes before the call that ends it."
function take_step(call, optimizers; update = config -> nothing, lr = nothing, loss_scale = nothing, grad_divisor = nothing,
                   unchecked = false, report = true, async = false)
    loss_scale === nothing || loss_scale > 0 || throw(invalid("loss_scale is $loss_scale; it has to be more than 0"))
    grad_divisor === nothing || grad_divisor > 0 || throw(invalid("grad_divisor is $grad_divisor; it has to be more than 0"))
    optimizer = optimizers[1]
    live(optimizer)
    isopen(optimizer.buffer) && !unchecked && sync_for_step!(optimizer.buffer, () -> loss_scale !== nothing || has_scaler(optimizer))
    config = Ref(Raw.mdp_step_config(; lr = something(lr, 0.0), loss_scale = something(loss_scale, 0.0), stream = stream_for(optimizer.buffer),
                                     flags = flags_of((lr, Raw.MDP_STEP_SET_LR), (unchecked ? 1 : nothing, Raw.MDP_STEP_UNCHECKED)),
                                     grad_divisor = something(grad_divisor, 0.0)))
    found = Ref(Raw.mdp_step_report())
    update(config)
    request = submit(out -> call(config, report ? found : C_NULL, out), optimizers...)
    async || wait(request)
    answer = report ? named_step(found[]) : nothing
    return async ? (answer, request) : answer
end

"The step would do it, but in one piece, deaf to other tasks and Ctrl-C. `skips()`: gradients that are not finite make all ranks skip it."
function sync_for_step!(buffer, skips)
    try
        sync!(buffer)
    catch problem
        problem isa MegaDPError && problem.kind == :NUMERIC && skips() || rethrow()
    end
end

named_step(found) = (grad_norm = found.grad_norm, clip_factor = found.clip_factor, loss_scale = found.loss_scale, step = Int(found.step),
                     skipped = found.flags & Raw.MDP_STEPPED_SKIPPED != 0, clipped = found.flags & Raw.MDP_STEPPED_CLIPPED != 0,
                     unchecked = found.flags & Raw.MDP_STEPPED_UNCHECKED != 0)

"""
    averaged(f, optimizer)

Calls `f()` while the averages of the optimizer's parameters are in their place, rounded, on all ranks, for evaluation; then what was there before
is again, bit for bit. Returns what `f` does. Meanwhile gradients, steps, checkpoints and writes of parameters are refused in all of the buffer.

    averaged(optimizer) do
        evaluate(model)
    end

Collective over the world at both ends. Throws `MegaDPError`: `:STATE` (no `average_decay`; another optimizer's averages are there; a step is under
way), and those of a lost communicator; an exception of `f` goes on.
"""
function averaged(f, optimizer::Optimizer)
    swap_average!(optimizer)
    answer = try
        f()
    catch
        try
            swap_average!(optimizer)
        catch problem  # the communicator is lost, which is mostly what f has thrown
            problem isa MegaDPError || rethrow()
        end
        rethrow()
    end
    swap_average!(optimizer)
    return answer
end

"""
    swap_average!(optimizer)

Puts the averages in the place of the optimizer's parameters, or what was there before back: what [`averaged`](@ref) does before and after.
Collective over the world. Throws as that.
"""
swap_average!(optimizer::Optimizer) =
    wait(submit(out -> Raw.mdp_optimizer_swap_average(optimizer, stream_for(optimizer.buffer), out), optimizer))

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
    state(optimizer, i, name) -> Vector

The owned part of parameter `i`'s `:master`, or of what the rule keeps, as a view: `:exp_avg` and `:exp_avg_sq` (`:adamw`, `:adam`),
`:momentum_buffer` (`:sgd_momentum`, `:sgd_nesterov`), `:exp_avg` (`:lion`), `:average` (with `average_decay`), what `state` named (`:caller`): Float32, or as `state_dtype` says; and what `param_states` named, UInt8. It may be written between steps and before the first, and is valid while it lives; a master holds what is written into it until its parameter is written again. Empty where this rank owns nothing of it; where it begins is told by [`owned`](@ref). Waits for the last step. Local. Throws
`MegaDPError`: `:INVALID`, `:STATE` (frozen).
"""
function state(optimizer::Optimizer, i::Which, name::Symbol)
    tensor = Ref(Raw.mdp_tensor())
    check(Raw.mdp_optimizer_state(optimizer, number_of(optimizer.buffer, i), state_name(optimizer, name), tensor))
    return view_of(optimizer, tensor[])
end

state_name(optimizer, name) =
    (optimizer.names !== nothing && name in optimizer.names || name in optimizer.kept) ? string(name) : choose(STATE_NAMES, "name", name)

"An array over memory of the optimizer's, which it keeps."
function view_of(optimizer, tensor)
    julia_type(tensor.dtype)  # throws where this Julia has no BFloat16, before the view is counted
    holders, pointer = optimizer.holders, live(optimizer)
    Threads.atomic_add!(holders, 1)
    return wrap(tensor, false, _ -> let_go(holders, pointer))
end
