# SPDX-License-Identifier: Apache-2.0
# A stand-in for ChainRulesCore.jl, for the tests alone: as much of its API as the extension uses, written for that; not the package.
module ChainRulesCore

const STANDIN = true

abstract type AbstractTangent end
abstract type AbstractZero <: AbstractTangent end
struct NoTangent <: AbstractZero end
struct ZeroTangent <: AbstractZero end

abstract type AbstractThunk <: AbstractTangent end
struct Thunk{F} <: AbstractThunk
    f::F
end
unthunk(x) = x
unthunk(thunk::Thunk) = thunk.f()

"Answers to every name of its primal; what it has not is zero."
struct Tangent{P,T} <: AbstractTangent
    backing::T
end
Tangent{P}(; fields...) where {P} = (backing = (; fields...); Tangent{P,typeof(backing)}(backing))
Tangent{P}(fields...) where {P} = Tangent{P,typeof(fields)}(fields)

function Base.getproperty(tangent::Tangent, name::Symbol)
    backing = getfield(tangent, :backing)
    return haskey(backing, name) ? unthunk(backing[name]) : ZeroTangent()
end
Base.getproperty(tangent::Tangent, i::Int) = unthunk(getfield(tangent, :backing)[i])

backing(tangent::Tangent) = getfield(tangent, :backing)
Base.keys(tangent::Tangent) = keys(backing(tangent))

"Of a mutable struct: every field in a Ref. As the package's since 1.17."
struct MutableTangent{P,F} <: AbstractTangent
    backing::F
end
MutableTangent{P}(fields::NamedTuple) where {P} = (refs = map(field -> Ref{Any}(field), fields); MutableTangent{P,typeof(refs)}(refs))
backing(tangent::MutableTangent) = map(getindex, getfield(tangent, :backing))
Base.keys(tangent::MutableTangent) = keys(backing(tangent))
Base.getproperty(tangent::MutableTangent, name::Symbol) = unthunk(getfield(tangent, :backing)[name][])

abstract type ReverseModeCapability end
struct HasReverseMode <: ReverseModeCapability end
struct NoForwardsMode end
abstract type RuleConfig{T} end

function rrule end
function rrule_via_ad end

macro non_differentiable(call)
    f, arguments = call.args[1], [gensym() for _ in call.args[2:end]]
    esc(:($ChainRulesCore.rrule(::typeof($f), $(arguments...)) =
        ($f($(arguments...)), _ -> $(Expr(:tuple, fill(:($ChainRulesCore.NoTangent()), length(arguments) + 1)...)))))
end

end
