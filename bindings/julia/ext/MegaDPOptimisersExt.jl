# SPDX-License-Identifier: Apache-2.0
# What of a layer is trained; rules as the library's own, or on pieces of parameters; rules that average gradients over ranks; optimizer states
# in synchronize!!.
module MegaDPOptimisersExt

using MegaDP: MegaDP, Comm, allreduce!, avg
using Optimisers: Optimisers

trained_parts(x, children) = chosen(children, Optimisers.trainable(x))
chosen(_, trained) = trained
# Layers of old answer with a tuple of the arrays themselves.
chosen(children::NamedTuple, trained::Tuple) =
    (; (name => child for (name, child) in pairs(children) if any(array -> array === child, trained))...)

# Its rules as keywords of Optimizer, where the formulas are the library's. Momentum and Nesterov are as long as eta stays: here their velocity
# has eta in it, in the library a change of lr counts for all of the momentum.
MegaDP.values_of(rule::Optimisers.Descent) = (rule = :sgd, lr = rule.eta)
MegaDP.values_of(rule::Optimisers.Momentum) = (rule = :sgd_momentum, lr = rule.eta, momentum = rule.rho)
MegaDP.values_of(rule::Optimisers.Nesterov) = (rule = :sgd_nesterov, lr = rule.eta, momentum = rule.rho)
MegaDP.values_of(rule::Optimisers.Adam) = (rule = :adam, lr = rule.eta, betas = rule.beta, eps = rule.epsilon)

# Otherwise its weight decay does not depend on eta.
MegaDP.values_of(rule::Optimisers.AdamW) =
    rule.couple || rule.lambda == 0 ?
    (rule = :adamw, lr = rule.eta, betas = rule.beta, eps = rule.epsilon, weight_decay = rule.lambda) : on_pieces(rule)

# WeightDecay before a rule is L2 regularization.
function MegaDP.values_of(chain::Optimisers.OptimiserChain)
    if length(chain.opts) == 2 && chain.opts[1] isa Optimisers.WeightDecay
        inner = chain.opts[2]
        inner isa Union{Optimisers.Descent,Optimisers.Momentum,Optimisers.Nesterov,Optimisers.Adam} &&
            return merge(MegaDP.values_of(inner), (weight_decay = chain.opts[1].lambda,))
    end
    return on_pieces(chain)
end

MegaDP.values_of(rule::Optimisers.AbstractRule) = on_pieces(rule)

# Others by their own `apply!`, on pieces. Lion too: its mean gives the gradient beta[2] where the paper, and the library, give it 1 - beta[2].
const ELEMENTWISE = (:Descent, :Momentum, :Nesterov, :Rprop, :RMSProp, :Adam, :RAdam, :AdaMax, :OAdam, :AdaGrad, :AdaDelta, :AMSGrad, :NAdam, :AdamW,
                     :AdaBelief, :Lion, :WeightDecay, :SignDecay, :ClipGrad)
for name in ELEMENTWISE
    isdefined(Optimisers, name) && @eval MegaDP.elementwise(::Optimisers.$name) = true
end
MegaDP.elementwise(chain::Optimisers.OptimiserChain) = all(MegaDP.elementwise, chain.opts)

"The update of pieces by a rule; `state` is what it is for a few elements."
struct RuleUpdate{R,S}
    rule::R
    state::S
    rated::Bool  # there is one eta, which is the optimizer's lr
end

refuse(rule, why) = throw(MegaDP.invalid("rule is Optimisers.jl's $rule, $why"))
name_of(rule) = string(nameof(typeof(rule)))
name_of(chain::Optimisers.OptimiserChain) = "OptimiserChain($(join(map(name_of, chain.opts), ", ")))"

function on_pieces(rule)
    MegaDP.elementwise(rule) ||
        refuse(name_of(rule), "which is not known to be element-wise: pieces of parameters are updated. Clipping by norm is max_grad_norm; " *
                              "`MegaDP.elementwise(::MyRule) = true` says it of a rule of your own")
    state = Optimisers.init(rule, zeros(Float32, 3))
    arrays = arrays_of(rule, state)
    length(arrays) <= 4 || refuse(name_of(rule), "which keeps $(length(arrays)) arrays; an optimizer has at most 4")
    at_step(rule, state, 1, copy(arrays))
    rates = etas(rule)
    values = (rule = :caller, state = [Symbol(:state_, k) for k in eachindex(arrays)], update = RuleUpdate(rule, state, length(rates) == 1))
    return length(rates) == 1 ? merge(values, (lr = rates[1],)) : values
end

etas(rule) = hasfield(typeof(rule), :eta) ? [rule.eta] : []
etas(chain::Optimisers.OptimiserChain) = reduce(vcat, map(etas, chain.opts); init = [])

with_eta(rule, eta) = hasfield(typeof(rule), :eta) && rule.eta != eta ? Optimisers._adjust(rule, (eta = eta,)) : rule
with_eta(chain::Optimisers.OptimiserChain, eta) = Optimisers.OptimiserChain(map(rule -> with_eta(rule, eta), chain.opts)...)

"The arrays of a rule's state, in order."
arrays_of(rule, state) = state isa Tuple ? reduce(vcat, map(part -> array_of(rule, part), state); init = []) : array_of(rule, state)
arrays_of(chain::Optimisers.OptimiserChain, states) = reduce(vcat, map(arrays_of, chain.opts, states); init = [])
array_of(_, part) = []
array_of(_, array::AbstractVector{Float32}) = Any[array]
array_of(rule, array::AbstractArray) = refuse(name_of(rule), "whose state has a $(typeof(array)); a piece's is a vector of Float32")

"The rule's state at a step: of `arrays`, which are taken away, and where it has numbers, of what the step says."
at_step(rule, state, step, arrays) = state isa Tuple ? map(part -> part_at(rule, part, step, arrays), state) : part_at(rule, state, step, arrays)
at_step(chain::Optimisers.OptimiserChain, states, step, arrays) =
    map((rule, state) -> at_step(rule, state, step, arrays), chain.opts, states)
part_at(_, ::AbstractArray, _, arrays) = popfirst!(arrays)
part_at(_, part::Union{Nothing,Bool}, _, _) = part
function part_at(rule, part, step, _)
    # The powers of the betas, and RAdam's count, as they are before this step's apply!.
    part isa Tuple{Real,Real} && hasfield(typeof(rule), :beta) && all(part .≈ rule.beta) && return part .^ step
    part isa Integer && name_of(rule) == "RAdam" && return oftype(part, step)
    refuse(name_of(rule), "whose state has $(repr(part)), which the number of the step does not say")
end

function (update::RuleUpdate)(piece)
    rule = update.rated ? with_eta(update.rule, piece.lr) : update.rule
    arrays = Any[piece.state...]
    # It begins as the rule says, which may be something else than zero.
    piece.step == 1 && foreach(copyto!, arrays, arrays_of(rule, Optimisers.init(rule, piece.master)))
    state, change = Optimisers.apply!(rule, at_step(rule, update.state, piece.step, copy(arrays)), piece.master, piece.grad)
    foreach((array, new) -> array === new || copyto!(array, new), arrays, arrays_of(rule, state))
    piece.master .-= change
    return nothing
end

function MegaDP.refuse_values(update::RuleUpdate, names)
    for name in names
        name == :lr && update.rated && continue
        throw(MegaDP.invalid("$name was given, which Optimisers.jl's $(name_of(update.rule)) does not take from the optimizer; " *
                             (update.rated ? "of these only lr is" : "its own values hold")))
    end
end

struct AveragingRule{R<:Optimisers.AbstractRule} <: Optimisers.AbstractRule
    comm::Comm
    rule::R
end

MegaDP.DistributedOptimizer(comm::Comm, rule::Optimisers.AbstractRule) = AveragingRule(comm, rule)

Optimisers.init(averaging::AveragingRule, x::AbstractArray) = Optimisers.init(averaging.rule, x)

function Optimisers.apply!(averaging::AveragingRule, state, x::AbstractArray{T}, dx) where {T}
    gradient = Broadcast.materialize(dx)  # a chain of rules hands on what it has not computed yet
    gradient = MegaDP.isdense(gradient) ? gradient : collect(T, gradient)
    return Optimisers.apply!(averaging.rule, state, x, allreduce!(averaging.comm, gradient, avg))
end

# `adjust!` reaches the rule inside.
Optimisers._adjust(averaging::AveragingRule, changes::NamedTuple) =
    AveragingRule(averaging.comm, Optimisers._adjust(averaging.rule, changes))

# A leaf's identity says which parameters are tied: it is written, not made again.
MegaDP.parts(leaf::Optimisers.Leaf) = ((state = leaf.state,), children -> (leaf.state = children.state; leaf))

__init__() = MegaDP.trained_parts[] = trained_parts

end
