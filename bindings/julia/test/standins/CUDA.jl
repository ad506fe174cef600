# SPDX-License-Identifier: Apache-2.0
# A stand-in for CUDA.jl, for the tests alone: arrays whose "device" is the host, and a stream that is a number; not the package.
module CUDA

const STANDIN = true

struct CuPtr{T}
    address::UInt
end
Base.UInt(pointer::CuPtr) = pointer.address

mutable struct CuArray{T,N} <: DenseArray{T,N}
    host::Array{T,N}
end
Base.size(array::CuArray) = size(array.host)
Base.IndexStyle(::Type{<:CuArray}) = IndexLinear()
Base.getindex(array::CuArray, i::Int) = array.host[i]
Base.strides(array::CuArray) = strides(array.host)
Base.pointer(array::CuArray{T}) where {T} = CuPtr{T}(UInt(pointer(array.host)))
Base.unsafe_wrap(::Type{CuArray}, pointer::CuPtr{T}, sizes) where {T} = CuArray(unsafe_wrap(Array, Ptr{T}(pointer.address), sizes))

struct CuDevice
    number::Int
end
struct CuStream
    handle::Ptr{Cvoid}
end

device(::CuArray) = CuDevice(3)
deviceid(device::CuDevice) = device.number
stream() = CuStream(Ptr{Cvoid}(UInt(0x1234)))

end
