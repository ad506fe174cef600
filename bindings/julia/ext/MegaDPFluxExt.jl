# SPDX-License-Identifier: Apache-2.0
# Flux's own training loop, over ranks. Layers and parameters come by Functors.jl and Optimisers.jl, which Flux brings along.
module MegaDPFluxExt

using Flux: Flux
using MegaDP: MegaDP, DataParallel, step!

"""
    Flux.train!(loss, dp::DataParallel, data)

As `Flux.train!(loss, model, data, opt_state)`: for every `d` of this rank's `data`, evaluates `loss(dp.model, d...)` (or `loss(dp.model, d)`
where `d` is no tuple) and takes a step, with the model in training mode (`trainmode!`). All ranks must have the same number of items: `DistributedDataContainer(comm, data; even = true)`.
A loss that is not finite shows in the gradients, and is a `MegaDPError` of kind `:NUMERIC` on all ranks. Collective over the world.
"""
function Flux.train!(loss, dp::DataParallel, data)
    Flux.trainmode!(dp.model)
    for item in data
        arguments = item isa Tuple ? item : (item,)
        found = Flux.withgradient(model -> loss(model, arguments...), dp.model)
        step!(dp, found.grad[1])
        dp.async && wait(dp)  # only wrapped layers would wait for their own parameters
    end
    return nothing
end

end
