# SPDX-License-Identifier: Apache-2.0
# A stand-in for ChainRulesCore.jl 0.9.44, for the tests alone: it has the tangents' names of today, but no RuleConfig; not the package.
module ChainRulesCore

const STANDIN = true

abstract type AbstractTangent end
abstract type AbstractZero <: AbstractTangent end
struct NoTangent <: AbstractZero end

abstract type AbstractThunk <: AbstractTangent end
struct Thunk{F} <: AbstractThunk
    f::F
end
unthunk(x) = x
unthunk(thunk::Thunk) = thunk.f()

struct Tangent{P,T} <: AbstractTangent
    backing::T
end
Tangent{P}(; fields...) where {P} = (backing = (; fields...); Tangent{P,typeof(backing)}(backing))
Base.keys(tangent::Tangent) = keys(getfield(tangent, :backing))
Base.getproperty(tangent::Tangent, name::Symbol) = unthunk(getfield(tangent, :backing)[name])

function rrule end

macro non_differentiable(call)
    f, arguments = call.args[1], [gensym() for _ in call.args[2:end]]
    esc(:($ChainRulesCore.rrule(::typeof($f), $(arguments...)) =
        ($f($(arguments...)), _ -> $(Expr(:tuple, fill(:($ChainRulesCore.NoTangent()), length(arguments) + 1)...)))))
end

end
