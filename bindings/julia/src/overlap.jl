# SPDX-License-Identifier: Apache-2.0
# Gradients that leave while backward goes on. Where a reverse-mode AD hands out the gradients of all parameters at its very end, the
# wrapped layer's own pullback knows them in time.

"""
    overlap(layer)

The same layer, whose gradients are handed over as soon as its own pullback has run, so that they are reduced while backward goes on with
the layers before it. Wrap each layer that has parameters, and make the `DataParallel` after that:

    model = Chain(overlap(Dense(784 => 512, relu)), overlap(Dense(512 => 10)))
    dp = DataParallel(comm, model; lr = 1e-3)

Needs an AD that goes by ChainRules' rules (Zygote), and ChainRulesCore.jl loaded; with Lux, where parameters are arguments, Lux.jl too.
A layer may run several times in one forward pass. Outside of differentiation, and for arrays that are no parameters of a `DataParallel`,
it is the layer itself. An array that stands at several places is in wrapped layers at all of them, or at none; and what is used outside of its layer
as well, as by a penalty on weights in the loss, is not wrapped: when that part of the gradient comes, the rest has left. `step!` finds it and says so.

A batch that is given up, as after an exception in backward that the program catches, has handed over a part of its gradients, and some may have left:
[`zero_grad!(dp)`](@ref) throws them away, before the next batch.
"""
overlap(layer) = Overlap(layer)

"A layer wrapped by [`overlap`](@ref); `layer` is the one inside."
struct Overlap{L}
    layer::L
end

(wrapped::Overlap)(arguments...) = run_layer(wrapped.layer, arguments...)
parts(wrapped::Overlap) = ((layer = wrapped.layer,), children -> Overlap(children.layer))
Base.show(io::IO, wrapped::Overlap) = print(io, "overlap(", wrapped.layer, ")")

"""
    run_layer(layer, arguments...)

`layer(arguments...)`, once the parameters in the layer and its arguments hold their values. The rule for this function is what hands over
gradients: an AD that knows no ChainRules calls [`forward_begins`](@ref) and [`backward_ends`](@ref) where that rule does.
"""
function run_layer(layer, arguments...)
    each_parameter((dp, i, _) -> await_parameter(dp, i), (layer, arguments), nothing)
    return layer(arguments...)
end

"""
    forward_begins(tree)

Notes that the layer whose parameters are in `tree` is about to run and will be differentiated; waits for these parameters. Local.
"""
function forward_begins(tree)
    each_parameter(tree, nothing) do dp, i, _
        await_parameter(dp, i)
        lock(dp.lock) do
            refresh(dp)
            dp.arrived[i] > 0 && (dp.again[i] = true)
            dp.expected[i] += 1
        end
    end
end

"""
    backward_ends(tree, grads)

Hands over the gradients of the parameters in `tree`, which `grads` has at the same places. The last one of as many as `forward_begins` noted
makes a parameter's gradient complete. The arrays are kept, and not to be written, until the step: a tree that is given to it has to have the same
gradients, or none. Local; any thread. Throws as `put!` of a `DataParallel`; then [`zero_grad!(dp)`](@ref) comes before the next batch.
"""
function backward_ends(tree, grads)
    compare(isowned, tree, grads)
    found = Tuple{DataParallel,Int,AbstractArray}[]
    each_parameter(tree, grads) do dp, i, gradient
        gradient isa AbstractArray && push!(found, (dp, i, gradient))
    end
    for (dp, i, gradient) in Iterators.reverse(found)  # buckets fill from the last parameter on
        last = lock(dp.lock) do
            refresh(dp)
            dp.arrived[i] += 1
            dp.handed[i] = handed_over(dp.handed[i], gradient)
            dp.arrived[i] >= dp.expected[i]
        end
        hand!(dp, i, gradient; more = !last)
    end
end

"""
What wrapped layers have handed over of a parameter's gradient: the arrays themselves; of more than two their sum, so that memory does not grow with
uses, and of each element the sum of absolute values.
"""
struct HandedOver
    arrays::Vector{AbstractArray}
    magnitude::Union{AbstractArray,Nothing}
    uses::Int
end

magnitude(handed) = something(handed.magnitude, mapreduce(array -> abs.(array), +, handed.arrays))

function handed_over(before, gradient)
    before === nothing && return HandedOver([gradient], nothing, 1)
    before.uses == 1 && return HandedOver([before.arrays[1], gradient], nothing, 2)
    return HandedOver([reduce(+, before.arrays) + gradient], magnitude(before) + abs.(gradient), before.uses + 1)
end

"""
Throws where a tree's gradients of a parameter, `found`, are not what wrapped layers have handed over. Mostly they are the same arrays, and nothing is
computed; others may be the same numbers, or their sum in another order.
"""
function refuse_other(dp, i, found)
    handed = dp.handed[i]
    within(some, others) = all(one -> any(other -> other === one, others), some)
    (isempty(found) || within(found, handed.arrays) && within(handed.arrays, found)) && return nothing
    precision = maximum(array -> eps(float(real(eltype(array)))), [found; handed.arrays])
    apart = abs.(reduce(+, found) - reduce(+, handed.arrays))
    # What is not a number is for the step to say.
    any(apart .> handed.uses * precision .* magnitude(handed)) || return nothing
    throw(invalid("the gradient of parameter $i, '$(dp.buffer.params[i].name)', is not what wrapped layers have handed over, which has left and " *
                  "cannot be added to. If the parameter is used outside of these layers as well, as by a penalty on weights, do not wrap them by " *
                  "overlap, or leave a penalty to the optimizer (weight_decay); if its gradient was scaled or clipped, use grad_divisor or " *
                  "max_grad_norm. If what they have handed over is of a batch that was given up, $GIVING_UP"; param = i))
end

await_parameter(dp, i) = dp.gathering === nothing || wait(dp.buffer, i)

"Calls `f(dp, i, gradient)` for each array of the tree that is a parameter of some `DataParallel`."
function each_parameter(f, tree, grads)
    map_leaves(tree) do leaf, path, _
        found = leaf isa AbstractArray{<:Number} ? owner_of(leaf) : nothing
        found === nothing || f(found[1], found[2], at(grads, path))
        return leaf
    end
    return nothing
end

# Which array belongs to which DataParallel, by its address: a layer does not know, and with Lux its parameters are not in it.
const owners = Dict{UInt,Tuple{WeakRef,Int}}()
const owners_lock = ReentrantLock()

address_of(array::DenseArray) = UInt(pointer(array))
address_of(array::PermutedDimsArray) = address_of(parent(array))
address_of(_) = UInt(0)

function remember(dp)
    lock(owners_lock) do
        filter!(entry -> entry.second[1].value !== nothing, owners)  # of those that nobody closed
        for (i, array) in enumerate(dp.arrays)
            isempty(array) || (owners[address_of(array)] = (WeakRef(dp), i))
        end
    end
end

isowned(x) = x isa AbstractArray{<:Number} && owner_of(x) !== nothing
forget(dp::DataParallel) = lock(() -> filter!(entry -> entry.second[1].value !== dp, owners), owners_lock)

function owner_of(array)
    address = address_of(array)
    entry = lock(() -> get(owners, address, nothing), owners_lock)
    entry === nothing && return nothing
    dp = entry[1].value
    return dp !== nothing && size(dp.arrays[entry[2]]) == size(array) ? (dp, entry[2]) : nothing
end
