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
