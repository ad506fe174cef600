# SPDX-License-Identifier: Apache-2.0
# Lux: wrapped layers, whose parameters are arguments, and the communicator as a backend of its DistributedUtils.
module MegaDPLuxExt

using Lux: Lux, DistributedUtils
using MegaDP: MegaDP, Comm

struct OverlapLayer{L<:Lux.AbstractLuxLayer} <: Lux.AbstractLuxWrapperLayer{:layer}
    layer::L
end

MegaDP.overlap(layer::Lux.AbstractLuxLayer) = OverlapLayer(layer)
(wrapped::OverlapLayer)(x, ps, st) = MegaDP.run_layer(wrapped.layer, x, ps, st)

struct Backend <: Lux.AbstractLuxDistributedBackend
    comm::Comm
end

MegaDP.DistributedBackend(comm::Comm) = Backend(comm)
MegaDP.DataParallel(backend::Backend, ps; keywords...) = MegaDP.DataParallel(backend.comm, ps; keywords...)

DistributedUtils.local_rank(backend::Backend) = MegaDP.local_rank(backend.comm)
DistributedUtils.total_workers(backend::Backend) = MegaDP.total_workers(backend.comm)

operation(op) = op === DistributedUtils.avg ? MegaDP.avg : op

function DistributedUtils.bcast_impl!(backend::Backend, array, device; root = 0)
    MegaDP.synchronize!!(backend.comm, array; root = root)  # any isbits type
    return nothing
end

function DistributedUtils.bcast_impl!(backend::Backend, from, to, device; root = 0)
    MegaDP.local_rank(backend.comm) == root && copyto!(to, from)
    MegaDP.synchronize!!(backend.comm, to; root = root)
    return nothing
end

function DistributedUtils.allreduce_impl!(backend::Backend, array, op, device)
    MegaDP.allreduce!(backend.comm, array, operation(op))
    return nothing
end

function DistributedUtils.allreduce_impl!(backend::Backend, from, to, op, device)
    MegaDP.allreduce!(backend.comm, from, to, operation(op))
    return nothing
end

# All ranks get the result: what the others' arrays hold after a reduce is not said.
DistributedUtils.reduce_impl!(backend::Backend, array, op, device; root::Int) =
    DistributedUtils.allreduce_impl!(backend, array, op, device)
DistributedUtils.reduce_impl!(backend::Backend, from, to, op, device; root::Int) =
    DistributedUtils.allreduce_impl!(backend, from, to, op, device)

end
