# SPDX-License-Identifier: Apache-2.0
# A stand-in for Flux.jl, for the tests alone: a layer, a chain, and gradients by differences in place of Zygote; not the package.
module Flux

using Functors: Functors

const STANDIN = true

struct Dense{F,M,B}
    weight::M
    bias::B
    σ::F
end
Dense(weight, bias) = Dense(weight, bias, identity)
(layer::Dense)(x) = layer.σ.(layer.weight * x .+ layer.bias)

"Does something while it is active, that is, trained: nothing says so here but `trainmode!`."
mutable struct Dropout
    active::Union{Bool,Nothing}
end
(layer::Dropout)(x) = layer.active === true ? zero(x) : x

trainmode!(layer::Dropout) = (layer.active = true; layer)
trainmode!(x) = (foreach(trainmode!, Functors.children(x)); x)

struct Chain{T<:Tuple}
    layers::T
end
Chain(layers...) = Chain(layers)
(chain::Chain)(x) = foldl((value, layer) -> layer(value), chain.layers; init = x)

function train! end

"Of arrays by central differences, of a node what its children have, of anything else nothing."
function differences(f, x)
    x isa AbstractArray{<:AbstractFloat} && return reshape(map(i -> difference(f, x, i), eachindex(x)), size(x))
    children = Functors.children(x)
    return isempty(children) ? nothing : map(child -> differences(f, child), children)
end

function difference(f, x, i)
    kept, step = x[i], 1.0f-2
    x[i] = kept + step
    above = f()
    x[i] = kept - step
    below = f()
    x[i] = kept
    return (above - below) / 2step
end

withgradient(f, model) = (val = f(model), grad = (differences(() -> f(model), model),))

end
