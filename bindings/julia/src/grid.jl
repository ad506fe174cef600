# SPDX-License-Identifier: Apache-2.0
# The world cut into groups along several axes of parallelism.

const AXES = Dict(:tp => Raw.MDP_AXIS_TP, :cp => Raw.MDP_AXIS_CP, :ep => Raw.MDP_AXIS_EP, :dp => Raw.MDP_AXIS_DP, :pp => Raw.MDP_AXIS_PP)

"""
    Grid(comm; tp = 1, cp = 1, ep = 1, pp = 1, expert_tp = tp, instances = 1, order = "tp-cp-ep-dp-pp")

Cuts the world into tensor, context, expert and pipeline parallel groups; data parallelism is what is left. The dp x cp ranks are cut into
`instances` runs of neighbours, each with all of the optimizer's state; gradients are summed inside one, then across. `order` lists the axes
from the fastest to the slowest varying rank. Collective over `comm`, with equal arguments; blocking, for at most the timeout. Throws
`MegaDPError`: `:INVALID` (sizes that do not divide), `:DESYNC`, and those of a lost communicator.
"""
mutable struct Grid <: Handle
    slot::Slot
    comm::Comm
end
@handle Grid mdp_grid
destroy(::Grid, pointer::UInt) = Raw.mdp_grid_destroy(Ptr{Raw.mdp_grid}(pointer))

function Grid(comm::Comm; tp = 1, cp = 1, ep = 1, pp = 1, expert_tp = tp, instances = 1, order = "tp-cp-ep-dp-pp")
    out = Ref{Ptr{Raw.mdp_grid}}(C_NULL)
    text = String(order)
    GC.@preserve text begin
        config = Ref(Raw.mdp_grid_config(; tp = tp, cp = cp, ep = ep, pp = pp, expert_tp = expert_tp,
                                         instances = instances, order = pointer(text)))
        check(Raw.mdp_grid_create(comm, config, out))
    end
    return finalizer(close, Grid(Slot(UInt(out[])), comm))
end

function axes_of(axes, expert)
    bits = mapreduce(axis -> choose(AXES, "axis", axis), |, axes isa Symbol ? (axes,) : axes; init = 0)
    return bits | (expert ? Raw.MDP_AXIS_EXPERT_GRID : 0)
end

"""
    coordinates(grid, axes; expert = false) -> (index, size)

This rank's index, from 0, in the group that the axes span together, and the group's size. `axes` is one of `:tp`, `:cp`, `:ep`, `:dp`,
`:pp`, or a tuple of them. Local. Throws `MegaDPError`: `:INVALID`.
"""
function coordinates(grid::Grid, axes; expert = false)
    index, size = Ref{Int32}(0), Ref{Int32}(0)
    check(Raw.mdp_grid_coords(grid, axes_of(axes, expert), index, size))
    return (Int(index[]), Int(size[]))
end

const RANDOMS = Dict(:replicated => Raw.MDP_RANDOM_REPLICATED, :tensor => Raw.MDP_RANDOM_TENSOR, :expert => Raw.MDP_RANDOM_EXPERT)

"""
    random_seed(grid, seed, random) -> UInt64

The seed of this rank's random numbers, for dropout and initial values, of one that is the same on all ranks. With `random = :replicated` all ranks
draw the same ones (of what is replicated over tensor-parallel ranks), with `:tensor` those of a tensor-parallel group draw different ones,
with `:expert` those of an expert-parallel group, too. Local. Throws `MegaDPError`: `:INVALID`.
"""
function random_seed(grid::Grid, seed::Integer, random::Symbol)
    out = Ref{UInt64}(0)
    check(Raw.mdp_grid_seed(grid, seed % UInt64, choose(RANDOMS, "random", random), out))
    return out[]
end

"""
    Comm(grid, axes; expert = false) -> Comm

The communicator of the group that the axes span (see [`coordinates`](@ref)). Collective over the whole world the first time; blocking.
"""
function Comm(grid::Grid, axes; expert = false)
    out = Ref{Ptr{Raw.mdp_comm}}(C_NULL)
    check(Raw.mdp_grid_comm(grid, axes_of(axes, expert), out))
    return Comm(out[])
end
