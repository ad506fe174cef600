# SPDX-License-Identifier: Apache-2.0
# Structs have the children that Functors.jl gives them: Flux's layers, and everybody's own.
module MegaDPFunctorsExt

using Functors: Functors
using MegaDP: MegaDP

function struct_parts(x)
    children, rebuild = Functors.functor(x)
    children isa Union{Tuple,NamedTuple} && !isempty(children) || return nothing
    return children, rebuild
end

Functors.functor(::Type{<:MegaDP.Overlap}, wrapped) = ((layer = wrapped.layer,), children -> MegaDP.Overlap(children.layer))

__init__() = MegaDP.struct_parts[] = struct_parts

end
