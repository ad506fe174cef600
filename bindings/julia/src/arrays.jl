# SPDX-License-Identifier: Apache-2.0
# Arrays of Julia as the library's tensors and back. Julia's are column-major: an m x n matrix is handed over as the n x m row-major array
# that has the same memory, and everything that is not dense by its strides. Nothing is copied that has strides.

const DTYPES = Dict{Any,UInt32}(Float32 => Raw.MDP_DTYPE_F32, Float16 => Raw.MDP_DTYPE_F16, Float64 => Raw.MDP_DTYPE_F64,
                                Int64 => Raw.MDP_DTYPE_I64, UInt8 => Raw.MDP_DTYPE_U8, :bf16 => Raw.MDP_DTYPE_BF16)
if isdefined(Core, :BFloat16)
    DTYPES[Core.BFloat16] = Raw.MDP_DTYPE_BF16
end

function dtype_of(type)
    haskey(DTYPES, type) && return DTYPES[type]
    throw(invalid("arrays of $type are not for the library; it knows $(join(sort!(string.(collect(keys(DTYPES)))), ", "))"))
end

function julia_type(dtype)
    for (type, value) in DTYPES
        value == dtype && type isa Type && return type
    end
    throw(failure(Raw.MDP_E_UNSUPPORTED, "this Julia has no type for the library's dtype $dtype; read!, write! and put! convert"))
end

"(device type, device number) of an array, as in DLPack; an extension adds CUDA's."
device_of(array) = (1, 0)

"The stream on which an array is made ready, and used after; NULL on the host."
stream_of(array) = C_NULL

const Wrapper = Union{SubArray,PermutedDimsArray,Transpose,Adjoint,Base.ReshapedArray}
device_of(array::Wrapper) = device_of(parent(array))
stream_of(array::Wrapper) = stream_of(parent(array))

"The stream that this task works on, where its arrays are on a device; an extension knows CUDA's."
const task_stream = Ref{Any}(() -> C_NULL)

"""
The memory of an array as (array that owns it, address of the first element, strides in elements), or `nothing` where it has no strides.
"""
strided(array::DenseArray) = (array, UInt(pointer(array)), strides(array))
function strided(array::SubArray)
    inner = array isa StridedArray ? strided(parent(array)) : nothing
    return inner === nothing ? nothing : (inner[1], UInt(pointer(array)), strides(array))
end
strided(_) = nothing

"What is dense stays so where its memory is read as another type."
function strided(array::Base.ReinterpretArray)
    isdense(parent(array)) || return nothing
    owner, address, _ = strided(parent(array))
    return (owner, address, Base.size_to_strides(1, size(array)...))
end

function strided(array::PermutedDimsArray{T,N,P}) where {T,N,P}
    inner = strided(parent(array))
    inner === nothing && return nothing
    return (inner[1], inner[2], map(d -> inner[3][d], P))
end

function strided(array::Union{Transpose{T},Adjoint{T}}) where {T<:Real}
    inner = strided(parent(array))
    inner === nothing && return nothing
    owner, address, steps = inner
    return (owner, address, length(steps) == 2 ? reverse(steps) : (size(parent(array), 1) * steps[1], steps[1]))
end

"A tensor that the library borrows for a call, with all that it points to."
mutable struct Borrowed
    tensor::Raw.mdp_tensor  # first, so that the object's address is the tensor's
    sizes::Vector{Int64}
    steps::Vector{Int64}
    owner::Any
end

Base.cconvert(::Type{Ptr{Raw.mdp_tensor}}, borrowed::Borrowed) = borrowed
Base.unsafe_convert(::Type{Ptr{Raw.mdp_tensor}}, borrowed::Borrowed) = Ptr{Raw.mdp_tensor}(pointer_from_objref(borrowed))

function borrow(owner, dtype, address, sizes, steps)
    device_type, device_id = device_of(owner)
    tensor = Raw.mdp_tensor(sizeof(Raw.mdp_tensor), dtype, device_type, device_id, length(sizes), 0,
                            Ptr{Cvoid}(address), pointer(sizes), isempty(steps) ? C_NULL : pointer(steps))
    return Borrowed(tensor, sizes, steps, owner)
end

"An array of any strides, its dimensions in the library's order."
function borrow(array::AbstractArray, row_major::Bool)
    dtype = dtype_of(eltype(array))
    owner, address, steps = strided(array)
    order = row_major ? identity : reverse
    return borrow(owner, dtype, address, Int64[order(size(array))...], Int64[order(steps)...])
end

"An array that is written in place, so that a copy would not do; `name` says which, in the error."
function borrow_written(array, name, row_major = false)
    strided(array) === nothing &&
        throw(invalid("$name is a $(typeof(array)), of which it is not known here how it lies in memory; it is written in place: give an Array, or a " *
                      "view of one"))
    return borrow(array, row_major)
end

"A dense array as one dimension: collectives do not look at shapes."
borrow_flat(array) = borrow(array, dtype_of(eltype(array)), strided(array)[2], Int64[length(array)], Int64[])

isdense(array::DenseArray) = true
isdense(array::Base.ReinterpretArray) = strided(array) !== nothing
isdense(array::AbstractArray) = array isa Base.FastContiguousSubArray && strided(array) !== nothing

"An array over `address` that owns nothing; an extension adds CUDA's (device type 2)."
wrap(::Val{1}, ::Type{T}, address, sizes) where {T} = unsafe_wrap(Array, Ptr{T}(address), sizes)

"""
What must be garbage before the memory of a wrapped array may go: arrays that `reshape` makes share it, with an older Julia by keeping the
first array, since 1.11 by keeping its Memory.
"""
keeper(array) = array
if isdefined(Core, :GenericMemory)
    keeper(array::Array) = getfield(getfield(array, :ref), :mem)
end

"The memory of a tensor as an array; `release` is called once, with some object, when nothing can reach it any more."
function wrap(tensor::Raw.mdp_tensor, row_major::Bool, release)
    type = julia_type(tensor.dtype)
    n = Int(tensor.ndim)
    sizes = ntuple(d -> Int(unsafe_load(tensor.shape, n + 1 - d)), n)
    if prod(sizes) == 0  # no memory to keep; and all empty arrays may be one object
        release(nothing)
        array = Array{type}(undef, sizes)
    else
        array = wrap(Val(Int(tensor.device_type)), type, tensor.data, sizes)
        finalizer(release, keeper(array))
    end
    return row_major && n > 1 ? PermutedDimsArray(array, ntuple(d -> n + 1 - d, n)) : array
end

"""
The memory of a tensor of any strides as an array that owns nothing: a view of a dense one, so long along each dimension that all strides further out
are multiples of it. Strides of views of dense arrays always allow that. It reaches beyond the tensor's memory, which the view does not.
"""
function wrap_strided(tensor::Raw.mdp_tensor)
    n = Int(tensor.ndim)
    sizes = [Int(unsafe_load(tensor.shape, n + 1 - d)) for d in 1:n]
    steps = [Int(unsafe_load(tensor.strides, n + 1 - d)) for d in 1:n]
    # Of one element the stride says nothing: it stays beside the dimension before it, so that nothing is permuted for it.
    places = zeros(Int, n)
    for d in 1:n
        places[d] = sizes[d] > 1 ? abs(steps[d]) : d == 1 ? 0 : places[d-1]
    end
    order = sortperm(places)
    lengths, ranges, start = ones(Int, n), Vector{Any}(undef, n), 0
    unit = 1  # what the strides from here on are multiples of
    for (i, d) in enumerate(order)
        sizes[d] > 1 || (ranges[i] = 1:sizes[d]; continue)
        step = abs(steps[d]) ÷ unit
        last = 1 + (sizes[d] - 1) * step
        ranges[i] = steps[d] < 0 ? (last:-step:1) : step == 1 ? (1:last) : (1:step:last)
        steps[d] < 0 && (start += (sizes[d] - 1) * steps[d])
        further = gcd(Int[steps[other] for other in order[i+1:end] if sizes[other] > 1])
        lengths[i] = further == 0 ? last : further ÷ unit
        unit = max(further, 1)
    end
    type = julia_type(tensor.dtype)
    whole = wrap(Val(Int(tensor.device_type)), type, UInt(tensor.data) + start * sizeof(type), Tuple(lengths))
    array = view(whole, ranges...)
    return issorted(order) ? array : PermutedDimsArray(array, Tuple(invperm(order)))
end

"Any integer type of Julia's as the library's, and symbols by their table; the error names the argument."
function choose(table, argument, value)
    haskey(table, value) && return table[value]
    throw(invalid("$argument is $(repr(value)); it can be $(join(map(repr, sort!(collect(keys(table)); by = string)), ", "))"))
end

"A struct of counters as a named tuple, without its size and reserved fields."
function named(report::T) where {T}
    names = filter(name -> !(name in (:struct_size, :reserved)), fieldnames(T))
    return NamedTuple{names}(map(name -> widened(getfield(report, name)), names))
end
widened(number::Integer) = Int(number)
widened(number) = number
