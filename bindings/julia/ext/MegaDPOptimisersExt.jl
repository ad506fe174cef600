# SPDX-License-Identifier: Apache-2.0
# What of a layer is trained; rules that average gradients over ranks; optimizer states in synchronize!!.
module MegaDPOptimisersExt

using MegaDP: MegaDP, Comm, allreduce!, avg
using Optimisers: Optimisers

trained_parts(x, children) = chosen(children, Optimisers.trainable(x))
chosen(_, trained) = trained
# Layers of old answer with a tuple of the arrays themselves.
chosen(children::NamedTuple, trained::Tuple) =
    (; (name => child for (name, child) in pairs(children) if any(array -> array === child, trained))...)

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
