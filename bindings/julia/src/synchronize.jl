# SPDX-License-Identifier: Apache-2.0
# Whole models and gradients, and data sets, over ranks: the names that users of Lux and FluxMPI know.

"""
    synchronize!!(comm, tree; root = 0) -> tree

Gives all ranks what rank `root` has: arrays in place, numbers in the tree that is returned; tuples, named tuples, arrays of these, and with
Functors.jl structs. What is neither an array nor a number is left as it is. Collective over `comm`, with trees of one shape; waits in
slices of 50 ms. Throws as [`bcast!`](@ref).
"""
synchronize!!(comm::Comm, tree; root = 0) = map_leaves((leaf, _, _) -> synchronize_leaf(comm, leaf, root), tree)

synchronize_leaf(_, leaf, _) = leaf

function synchronize_leaf(comm, leaf::AbstractArray{<:Number}, root)
    isempty(leaf) && return leaf
    isdense(leaf) && haskey(DTYPES, eltype(leaf)) && return bcast!(comm, leaf; root = root)
    return copyto!(leaf, reshape(from_bytes(eltype(leaf), bcast!(comm, to_bytes(leaf); root = root)), size(leaf)))
end

function synchronize_leaf(comm, leaf::T, root) where {T<:Number}
    isbitstype(T) || return leaf
    return from_bytes(T, bcast!(comm, to_bytes([leaf]); root = root))[1]
end

to_bytes(array) = collect(reinterpret(UInt8, vec(collect(array))))
from_bytes(::Type{T}, bytes) where {T} = collect(reinterpret(T, bytes))

"""
    allreduce!(comm, tree, op = avg) -> tree

Reduces all arrays of a nested gradient over the ranks, one operation for each element type: what stands between `gradient` and
`Optimisers.update!` for those who keep their optimizer. Dense arrays are written in place; for lazy ones the tree that is returned has new
ones. `nothing` stays. Collective over `comm`, with trees of one shape; waits in slices of 50 ms. Throws as `allreduce!` of an array.
"""
function allreduce!(comm::Comm, tree, op = avg)
    leaves = Dict{Any,Vector{AbstractArray}}()
    map_leaves(tree) do leaf, _, _
        leaf isa AbstractArray{<:Number} && push!(get!(leaves, eltype(leaf), AbstractArray[]), leaf)
        return leaf
    end
    reduced = IdDict{Any,Any}()
    for type in sort!(collect(keys(leaves)); by = string)  # one order on all ranks
        alike = unique(objectid, leaves[type])
        flat = allreduce!(comm, reduce(vcat, map(vec, alike)), op)
        at = 0
        for leaf in alike
            piece = reshape(view(flat, at+1:at+length(leaf)), size(leaf))
            reduced[leaf] = isdense(leaf) ? copyto!(leaf, piece) : copy(piece)
            at += length(leaf)
        end
    end
    return map_leaves((leaf, _, _) -> leaf isa AbstractArray{<:Number} ? reduced[leaf] : leaf, tree)
end

"""
    DistributedOptimizer(comm, rule)

A rule for Optimisers.jl that averages each gradient over the ranks before `rule` sees it. Needs Optimisers.jl loaded. For a sharded state
and overlap see [`DataParallel`](@ref).
"""
function DistributedOptimizer end

"""
    DistributedBackend(comm)

The communicator as a backend of `Lux.DistributedUtils`, whose functions then work with it. Needs Lux.jl loaded.
"""
function DistributedBackend end

"""
    DistributedDataContainer(comm, data; even = false)

This rank's part of `data` (anything with `length` and `getindex`): a contiguous piece, so that the parts of all ranks are the whole. It has
`length`, `getindex` and iteration, which is all that MLUtils' `DataLoader` asks for. Lengths of different ranks differ by at most one;
`even = true` leaves out the last few, so that all are equal and all ranks take the same number of steps. Local.
"""
struct DistributedDataContainer{D}
    data::D
    indices::UnitRange{Int}
    DistributedDataContainer{D}(data, indices) where {D} = new{D}(data, indices)
end

function DistributedDataContainer(comm::Comm, data; even = false)
    ranks, rank, total = total_workers(comm), local_rank(comm), length(data)
    even && (total -= total % ranks)
    return DistributedDataContainer{typeof(data)}(data, div(total * rank, ranks)+1:div(total * (rank + 1), ranks))
end

Base.length(part::DistributedDataContainer) = length(part.indices)
Base.getindex(part::DistributedDataContainer, i) = part.data[part.indices[i]]
Base.firstindex(::DistributedDataContainer) = 1
Base.lastindex(part::DistributedDataContainer) = length(part)
Base.eltype(::Type{DistributedDataContainer{D}}) where {D} = eltype(D)
Base.iterate(part::DistributedDataContainer, i = 1) = i > length(part) ? nothing : (part[i], i + 1)
