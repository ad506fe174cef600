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

struct Nesterov <: AbstractRule
    eta::Float64
    rho::Float64
end

struct Adam <: AbstractRule
    eta::Float64
    beta::Tuple{Float64,Float64}
    epsilon::Float64
end

struct AdamW <: AbstractRule
    eta::Float64
    beta::Tuple{Float64,Float64}
    lambda::Float64
    epsilon::Float64
    couple::Bool
end

struct Lion <: AbstractRule
    eta::Float64
    beta::Tuple{Float64,Float64}
end

struct RMSProp <: AbstractRule
    eta::Float64
end

struct WeightDecay <: AbstractRule
    lambda::Float64
end

struct OptimiserChain{O<:Tuple} <: AbstractRule
    opts::O
end
OptimiserChain(opts...) = OptimiserChain(opts)

init(::Union{Descent,WeightDecay}, x::AbstractArray) = nothing
apply!(rule::Descent, state, x, dx) = (state, Broadcast.broadcasted(*, rule.eta, dx))  # lazy, as the package's
init(::Union{Momentum,Nesterov}, x::AbstractArray) = zero(x)
apply!(rule::Momentum, velocity, x, dx) = (velocity .= rule.rho .* velocity .+ rule.eta .* dx; (velocity, velocity))
function apply!(rule::Nesterov, velocity, x, dx)
    change = (1 + rule.rho) .* rule.eta .* dx .- rule.rho^2 .* velocity
    velocity .= rule.rho .* velocity .- rule.eta .* dx
    return velocity, change
end
_adjust(::Descent, changes::NamedTuple) = Descent(changes.eta)

init(rule::Union{Adam,AdamW}, x::AbstractArray) = (zero(x), zero(x), rule.beta)
function apply!(rule::Union{Adam,AdamW}, (m, v, powers), x, dx)
    m .= rule.beta[1] .* m .+ (1 - rule.beta[1]) .* dx
    v .= rule.beta[2] .* v .+ (1 - rule.beta[2]) .* dx .^ 2
    change = m ./ (1 - powers[1]) ./ (sqrt.(v ./ (1 - powers[2])) .+ rule.epsilon)
    return (m, v, powers .* rule.beta), rule.eta .* decayed(rule, change, x)
end
decayed(::Adam, change, x) = change
decayed(rule::AdamW, change, x) = rule.couple ? change .+ rule.lambda .* x : change .+ rule.lambda ./ rule.eta .* x

apply!(rule::WeightDecay, state, x, dx) = (state, dx .+ rule.lambda .* x)
init(chain::OptimiserChain, x::AbstractArray) = map(rule -> init(rule, x), chain.opts)
function apply!(chain::OptimiserChain, states, x, dx)
    found = ()
    for (rule, state) in zip(chain.opts, states)
        state, dx = apply!(rule, state, x, dx)
        found = (found..., state)
    end
    return found, dx
end

trainable(x) = Functors.children(x)

isparameter(x) = x isa AbstractArray{<:AbstractFloat}
setup(rule, x) = isparameter(x) ? Leaf(rule, init(rule, x), false) : map(child -> setup(rule, child), trainable(x))

function update!(leaf::Leaf, x::AbstractArray, dx)
    leaf.state, change = apply!(leaf.rule, leaf.state, x, dx)
    x .-= change
end
update!(tree, x, dx) = foreach(name -> update!(tree[name], getfield(x, name), dx[name]), keys(tree))

end
