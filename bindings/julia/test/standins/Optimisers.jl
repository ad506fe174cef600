# SPDX-License-Identifier: Apache-2.0
# A stand-in for Optimisers.jl, for the tests alone: as much of its API as the extension and a training by it use; not the package.
module Optimisers

using Functors: Functors

const STANDIN = true

abstract type AbstractRule end

mutable struct Leaf{R,S}
    rule::R
    state::S
    frozen::Bool
end

struct Descent <: AbstractRule
    eta::Float64
end

struct Momentum <: AbstractRule
    eta::Float64
    rho::Float64
end

init(::Descent, x::AbstractArray) = nothing
apply!(rule::Descent, state, x, dx) = (state, Broadcast.broadcasted(*, rule.eta, dx))  # lazy, as the package's
init(::Momentum, x::AbstractArray) = zero(x)
apply!(rule::Momentum, velocity, x, dx) = (velocity .= rule.rho .* velocity .+ rule.eta .* dx; (velocity, velocity))
_adjust(::Descent, changes::NamedTuple) = Descent(changes.eta)

trainable(x) = Functors.children(x)

isparameter(x) = x isa AbstractArray{<:AbstractFloat}
setup(rule, x) = isparameter(x) ? Leaf(rule, init(rule, x), false) : map(child -> setup(rule, child), trainable(x))

function update!(leaf::Leaf, x::AbstractArray, dx)
    leaf.state, change = apply!(leaf.rule, leaf.state, x, dx)
    x .-= change
end
update!(tree, x, dx) = foreach(name -> update!(tree[name], getfield(x, name), dx[name]), keys(tree))

end
