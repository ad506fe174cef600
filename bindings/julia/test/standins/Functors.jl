# SPDX-License-Identifier: Apache-2.0
# A stand-in for Functors.jl, for the tests alone: as much of its API as the extension uses, written for that; not the package.
module Functors

const STANDIN = true

functor(x) = functor(typeof(x), x)
functor(::Type{<:Union{Tuple,NamedTuple}}, x) = (x, identity)
functor(::Type{<:Union{Number,AbstractArray{<:Number},AbstractString,Symbol,Type}}, x) = ((), _ -> x)

"As version 0.5 does: every struct has its fields for children."
function functor(::Type{T}, x) where {T}
    T <: AbstractArray && return x, identity
    names = fieldnames(T)
    isempty(names) && return (), _ -> x
    T <: Function && return NamedTuple{names}(map(name -> getfield(x, name), names)), children -> alike(T, children...)
    constructor = Base.typename(T).wrapper
    return NamedTuple{names}(map(name -> getfield(x, name), names)), children -> constructor(map(name -> children[name], names)...)
end

"A function has no constructor."
@generated alike(::Type{T}, values...) where {T} = Expr(:new, T, (:(values[$i]) for i in 1:length(values))...)

children(x) = functor(x)[1]

end
