# SPDX-License-Identifier: Apache-2.0
# What of a layer is trained; rules as the library's own; rules that average gradients over ranks; optimizer states in synchronize!!.
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

function MegaDP.values_of(rule::Optimisers.AdamW)
    rule.couple || rule.lambda == 0 || refuse("AdamW with couple = false", "its weight decay does not depend on eta; use couple = true")
    return (rule = :adamw, lr = rule.eta, betas = rule.beta, eps = rule.epsilon, weight_decay = rule.lambda)
end

MegaDP.values_of(::Optimisers.Lion) =
    refuse("Lion", "its mean gives the gradient beta[2] where the paper gives it 1 - beta[2]; say rule = :lion, with lr and betas")

# WeightDecay before a rule is L2 regularization.
function MegaDP.values_of(chain::Optimisers.OptimiserChain)
    if length(chain.opts) == 2 && chain.opts[1] isa Optimisers.WeightDecay
        values = MegaDP.values_of(chain.opts[2])
        values.rule == :adamw || return merge(values, (weight_decay = chain.opts[1].lambda,))
    end
    refuse("OptimiserChain", "what can be is WeightDecay before Adam, Descent, Momentum or Nesterov; clipping is max_grad_norm and max_grad_value")
end

MegaDP.values_of(rule::Optimisers.AbstractRule) = refuse(nameof(typeof(rule)), "Descent, Momentum, Nesterov, Adam and AdamW are")

refuse(rule, why) = throw(MegaDP.invalid("rule is Optimisers.jl's $rule, which is none of the library's: $why"))

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
