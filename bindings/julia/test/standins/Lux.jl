# SPDX-License-Identifier: Apache-2.0
# A stand-in for Lux.jl, for the tests alone: the abstract types and the functions of DistributedUtils that the extension has to do with, by
# their signatures; not the package.
module Lux

const STANDIN = true

abstract type AbstractLuxLayer end
abstract type AbstractLuxWrapperLayer{layer} <: AbstractLuxLayer end
abstract type AbstractLuxDistributedBackend end

"A wrapper has the parameters of the one layer in it, under no name of its own."
initialparameters(wrapper::AbstractLuxWrapperLayer{layer}) where {layer} = initialparameters(getfield(wrapper, layer))
apply(layer::AbstractLuxLayer, x, ps, st) = layer(x, ps, st)

module DistributedUtils

using ..Lux: AbstractLuxDistributedBackend

struct SomeDevice end

function local_rank end
function total_workers end
function avg end
function bcast_impl! end
function allreduce_impl! end
function reduce_impl! end

bcast!(backend::AbstractLuxDistributedBackend, array; root::Int = 0) = (bcast_impl!(backend, array, SomeDevice(); root = root); nothing)
bcast!(backend::AbstractLuxDistributedBackend, from, to; root::Int = 0) = (bcast_impl!(backend, from, to, SomeDevice(); root = root); nothing)
allreduce!(backend::AbstractLuxDistributedBackend, array, op) = allreduce_impl!(backend, array, op, SomeDevice())
allreduce!(backend::AbstractLuxDistributedBackend, from, to, op) = (allreduce_impl!(backend, from, to, op, SomeDevice()); nothing)
reduce!(backend::AbstractLuxDistributedBackend, array, op; root::Int = 0) = reduce_impl!(backend, array, op, SomeDevice(); root = root)
reduce!(backend::AbstractLuxDistributedBackend, from, to, op; root::Int = 0) =
    (reduce_impl!(backend, from, to, op, SomeDevice(); root = root); nothing)

end

end
