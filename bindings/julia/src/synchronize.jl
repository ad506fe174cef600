# SPDX-License-Identifier: Apache-2.0
# Whole models and gradients, and data sets, over ranks: the names that users of Lux and FluxMPI know.

"""
    synchronize!!(comm, tree; root = 0) -> tree

Gives all ranks what rank `root` has: arrays in place, numbers and ranges (and other arrays that cannot be written) in the tree that is returned;
tuples, named tuples, arrays of these, and with Functors.jl structs and what functions have captured. What is neither an array nor a number is left as it is. Collective over
`comm`, with trees that have arrays and numbers at the same places, of the same sizes and types; waits in slices of 50 ms. Throws as [`bcast!`](@ref);
`:DESYNC` where trees differ, naming the first place and two ranks: nothing has changed then, and ranks go on together; `:INVALID` for a Dict that has
arrays or numbers, without Functors.jl for a function that has arrays, and for numbers that are not of a fixed size (BigInt, BigFloat), naming the
place, and for a tree of structs in which nothing can be seen.
"""
function synchronize!!(comm::Comm, tree; root = 0)
    told = String[]
    map_leaves(tree) do leaf, path, _
        # Numbers and ranges are given as bytes, which say nothing of their type; a range's has no size in it.
        seen_through(leaf, path) isa Reduced && push!(told, isbits(leaf) ? told_of(leaf, path, typeof(leaf), "") : told_of(leaf, path))
        return leaf
    end
    refuse_unseen(tree, !isempty(told))
    agree_on_leaves(comm, tree, told)
    return map_leaves((leaf, path, _) -> synchronize_leaf(comm, leaf, path, root), tree)
end

told_of(leaf, path, type = eltype(leaf), sized = leaf isa Number ? "" : " of size $(size(leaf))") = string(leaf_at(path), " (", type, sized, ")")

"""
Throws a `MegaDPError` of kind `:DESYNC` on all ranks unless they tell the same of their trees' leaves, before anything is changed: where one has `nothing`
that others do not have there, what comes behind it would be taken for something else, and often nothing else would say so. Ranks go on together.
"""
function agree_on_leaves(comm, tree, told)
    ranks = total_workers(comm)
    (ranks == 1 || tree isa Reduced) && return nothing
    text = Vector{UInt8}(join(told, '\n'))
    # By FNV-1a, since what `hash` gives is another in other versions of Julia.
    digest = foldl((sum, byte) -> (sum ⊻ byte) * 0x00000100000001b3, text; init = 0xcbf29ce484222325)
    found = reshape(allgather!(comm, [length(text), digest % Int64], zeros(Int64, 2ranks)), 2, ranks)
    other = findfirst(rank -> found[:, rank] != found[:, 1], 1:ranks)
    other === nothing && return nothing
    told_on(rank) = found[1, rank+1] == 0 ? String[] :
                    split(String(bcast!(comm, local_rank(comm) == rank ? text : zeros(UInt8, found[1, rank+1]); root = rank)), '\n')
    one, another = told_on(0), told_on(other - 1)
    k = something(findfirst(k -> get(one, k, "") != get(another, k, ""), 1:max(length(one), length(another))), 1)
    blamed, first_rank = world_rank(comm, other - 1), world_rank(comm, 0)
    on(list, rank) = "$(get(list, k, "nothing more")) on rank $rank"
    throw(MegaDPError(Raw.MDP_E_DESYNC, :DESYNC, blamed, nothing, nothing, 0,
                      "the trees of ranks $first_rank and $blamed differ: of arrays and numbers, number $k is $(on(one, first_rank)) and $(on(another, blamed)). " *
                      "All ranks must have them at the same places; where one has no gradient, it is zeros"))
end

synchronize_leaf(_, leaf, _, _) = leaf

function synchronize_leaf(comm, leaf::Reduced, path, root)
    isbits(leaf) && !(leaf isa DenseArray) && return synchronize_bits(comm, leaf, root)
    isempty(leaf) && return leaf
    isbitstype(eltype(leaf)) || throw(unfit(leaf, path, "synchronize!! takes numbers of a fixed size, such as Float64, Int64 and ComplexF32"))
    isdense(leaf) && haskey(DTYPES, eltype(leaf)) && return bcast!(comm, leaf; root = root)
    return copyto!(leaf, reshape(from_bytes(eltype(leaf), bcast!(comm, to_bytes(leaf); root = root)), size(leaf)))
end

# Half of such a matrix cannot be written. All of the array behind it is given: ranks have the same half.
synchronize_leaf(comm, leaf::Union{Symmetric{<:Number},Hermitian{<:Number}}, path, root) =
    rewrapped(leaf, synchronize_leaf(comm, parent(leaf), path, root))
rewrapped(leaf::Symmetric, inside) = inside === parent(leaf) ? leaf : Symmetric(inside, Symbol(leaf.uplo))
rewrapped(leaf::Hermitian, inside) = inside === parent(leaf) ? leaf : Hermitian(inside, Symbol(leaf.uplo))

"Of what is only bits, a number or a range, rank `root`'s."
function synchronize_bits(comm, value::T, root) where {T}
    sizeof(T) == 0 && return value
    bytes = Vector{UInt8}(undef, sizeof(T))
    GC.@preserve bytes begin
        unsafe_store!(Ptr{T}(pointer(bytes)), value)
        bcast!(comm, bytes; root = root)
        return unsafe_load(Ptr{T}(pointer(bytes)))
    end
end

"The refusal of a leaf whose numbers are of a type that cannot be; `expected` says which can."
unfit(leaf, path, expected) = invalid("$(leaf_at(path)) is $(leaf isa Number ? "a number" : "an array") of $(eltype(leaf)); $expected")

to_bytes(array) = collect(reinterpret(UInt8, vec(collect(array))))
from_bytes(::Type{T}, bytes) where {T} = collect(reinterpret(T, bytes))

"""
    allreduce!(comm, tree, op = avg) -> tree

Reduces all arrays and numbers of a nested gradient over the ranks, one operation for each element type: what stands between `gradient` and
`Optimisers.update!` for those who keep their optimizer. Dense arrays, and transposes of such, are written in place; for lazy ones and ranges, and
for numbers, the tree that is returned has new ones, so that `loss = allreduce!(comm, loss)` is the mean of all ranks' losses. `nothing` stays, and
is at the same places on all ranks: where one rank's batch has not used a layer, its gradients must be zeros there.
Collective over `comm`, with trees that have arrays and numbers at the same places, of the same sizes and types; waits in slices of 50 ms. Throws as
`allreduce!` of an array; `:DESYNC` as `synchronize!!`; `:INVALID` for a Dict that has arrays or numbers, and for a type of numbers that cannot be
reduced (integers by `avg` too), naming the place, and as `synchronize!!` for structs.
"""
function allreduce!(comm::Comm, tree, op = avg)
    leaves, places, known, told = Any[], Int[], IdDict{Any,Int}(), String[]
    map_leaves(tree) do leaf, path, _
        seen_through(leaf, path) isa Reduced || return leaf
        haskey(DTYPES, eltype(leaf)) || throw(unfit(leaf, path, "allreduce! takes Float32, Float16, BFloat16, Float64, Int64 and UInt8"))
        op === avg && eltype(leaf) <: Integer && throw(unfit(leaf, path, "op is avg, which is not for integers; +, max and min are"))
        # What has no identity may be equal on one rank only.
        again = !isbits(leaf) && haskey(known, leaf)
        again || push!(leaves, leaf)
        push!(places, isbits(leaf) ? length(leaves) : get!(known, leaf, length(leaves)))
        push!(told, told_of(leaf, path) * (again ? ", array $(places[end]) again," : ""))
        return leaf
    end
    refuse_unseen(tree, !isempty(leaves))
    agree_on_leaves(comm, tree, told)
    reduced = Vector{Any}(undef, length(leaves))
    for type in sort!(unique(map(eltype, leaves)); by = string)  # one order on all ranks
        alike = filter(i -> eltype(leaves[i]) == type, eachindex(leaves))
        flat = allreduce!(comm, reduce(vcat, map(i -> leaves[i] isa Number ? [leaves[i]] : vec(leaves[i]), alike)), op)
        at = 0
        for i in alike
            leaf = leaves[i]
            piece = view(flat, at+1:at+length(leaf))
            reduced[i] = leaf isa Number ? piece[1] : isdense(leaf) ? copyto!(leaf, reshape(piece, size(leaf))) : copy(reshape(piece, size(leaf)))
            at += length(leaf)
        end
    end
    next = Ref(0)
    return map_leaves((leaf, _, _) -> leaf isa Reduced ? reduced[places[next[]+=1]] : leaf, tree)
end

"""
    DistributedOptimizer(comm, rule)

A rule for Optimisers.jl that averages each gradient over the ranks before `rule` sees it. Needs Optimisers.jl loaded. For a sharded state
and overlap see [`DataParallel`](@ref).

A rule is told the gradient alone, not whose it is: ranks' gradients are paired in the order in which `Optimisers.update` comes to them, which passes over
those that are `nothing`. All ranks must have `nothing` at the same places; where one has it alone, gradients of different parameters are averaged with
each other, and no error says so if they are of one length. Where a batch may not use a layer, `grads = allreduce!(comm, grads)` before
`update` is the safe way, which compares the trees first.
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
