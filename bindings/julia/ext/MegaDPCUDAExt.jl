# SPDX-License-Identifier: Apache-2.0
# Arrays of CUDA.jl: where they are, on which stream, and the library's device memory as such arrays. An array that `reshape` or `view` makes
# of such an array does not keep it: keep the first one, or the DataParallel, for as long.
module MegaDPCUDAExt

using CUDA: CUDA, CuArray, CuPtr
using MegaDP: MegaDP

stream() = Ptr{Cvoid}(UInt(CUDA.stream().handle))

MegaDP.device_of(array::CuArray) = (2, Int(CUDA.deviceid(CUDA.device(array))))
MegaDP.stream_of(::CuArray) = stream()
MegaDP.wrap(::Val{2}, ::Type{T}, address, sizes) where {T} = unsafe_wrap(CuArray, CuPtr{T}(UInt(address)), sizes)

__init__() = MegaDP.task_stream[] = stream

end
