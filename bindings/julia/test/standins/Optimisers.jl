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
    rho::Float64
    epsilon::Float64
    centred::Bool
end
RMSProp(eta; centred = false) = RMSProp(eta, 0.9, 1e-8, centred)

struct AdaGrad <: AbstractRule
    eta::Float64
    epsilon::Float64
end

struct RAdam <: AbstractRule
    eta::Float64
    beta::Tuple{Float64,Float64}
    epsilon::Float64
end

struct ClipGrad <: AbstractRule
    delta::Float64
end

struct ClipNorm <: AbstractRule
    omega::Float64
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
_adjust(rule::T, changes::NamedTuple) where {T<:AbstractRule} = T(map(name -> get(changes, name, getfield(rule, name)), fieldnames(T))...)

init(rule::Union{Adam,AdamW}, x::AbstractArray) = (zero(x), zero(x), rule.beta)
function apply!(rule::Union{Adam,AdamW}, (m, v, powers), x, dx)
    m .= rule.beta[1] .* m .+ (1 - rule.beta[1]) .* dx
    v .= rule.beta[2] .* v .+ (1 - rule.beta[2]) .* dx .^ 2
    change = m ./ (1 - powers[1]) ./ (sqrt.(v ./ (1 - powers[2])) .+ rule.epsilon)
    return (m, v, powers .* rule.beta), rule.eta .* decayed(rule, change, x)
end
decayed(::Adam, change, x) = change
decayed(rule::AdamW, change, x) = rule.couple ? change .+ rule.lambda .* x : change .+ rule.lambda ./ rule.eta .* x

init(::Lion, x::AbstractArray) = zero(x)
function apply!(rule::Lion, m, x, dx)
    change = rule.eta .* sign.((1 - rule.beta[1]) .* dx .+ rule.beta[1] .* m)
    m .= rule.beta[2] .* dx .+ (1 - rule.beta[2]) .* m
    return m, change
end

init(rule::RMSProp, x::AbstractArray) = (zero(x), rule.centred ? zero(x) : false)
function apply!(rule::RMSProp, (square, mean), x, dx)
    square .= rule.rho .* square .+ (1 - rule.rho) .* dx .^ 2
    mean === false || (mean .= rule.rho .* mean .+ (1 - rule.rho) .* dx)
    return (square, mean), dx .* rule.eta ./ (sqrt.(square .- mean .^ 2) .+ rule.epsilon)
end

init(rule::AdaGrad, x::AbstractArray) = fill!(similar(x), rule.epsilon)
function apply!(rule::AdaGrad, sum, x, dx)
    sum = sum .+ dx .^ 2  # another array, as a rule may
    return sum, dx .* rule.eta ./ (sqrt.(sum) .+ rule.epsilon)
end

init(rule::RAdam, x::AbstractArray{T}) where {T} = (zero(x), zero(x), T.(rule.beta), 1)
function apply!(rule::RAdam, (m, v, powers, t), x, dx)
    longest = 2 / (1 - rule.beta[2]) - 1
    m .= rule.beta[1] .* m .+ (1 - rule.beta[1]) .* dx
    v .= rule.beta[2] .* v .+ (1 - rule.beta[2]) .* dx .^ 2
    length = longest - 2t * powers[2] / (1 - powers[2])
    change = if length > 4
        r = sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
        m .* rule.eta ./ (1 - powers[1]) ./ (sqrt.(v ./ (1 - powers[2])) .+ rule.epsilon) .* r
    else
        m .* rule.eta ./ (1 - powers[1])
    end
    return (m, v, powers .* oftype(powers, rule.beta), t + 1), change
end

init(::Union{ClipGrad,ClipNorm}, x::AbstractArray) = nothing
apply!(rule::ClipGrad, state, x, dx) = (state, clamp.(dx, -rule.delta, rule.delta))

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
