# SPDX-License-Identifier: Apache-2.0
# A small reverse-mode AD of the tests' own: a tape of pullbacks, run backwards. Layers are differentiated as a whole, as `overlap` wants it.

struct Tape
    pullbacks::Vector{Any}
end
Tape() = Tape([])

"x is 64 x rows: one column for each sample."
struct Dense{A}
    relu::Bool
    parameters::A  # (w = inputs x outputs, b = outputs)
end

function forward!(tape::Tape, layer::Dense, x, hand_over)
    w, b = layer.parameters
    hand_over && MegaDP.forward_begins(layer.parameters)
    before = transpose(w) * x .+ b
    push!(tape.pullbacks, function (dy)
        d = layer.relu ? dy .* (before .> 0) : dy
        # The gradient of w is a transposed product: what is handed over has strides of its own.
        grads = (w = transpose(d * transpose(x)), b = vec(sum(d; dims = 2)))
        hand_over && MegaDP.backward_ends(layer.parameters, grads)
        return grads, w * d
    end)
    return layer.relu ? max.(before, 0) : before
end

"The gradients of all layers, in their order, from that of the last output."
function backward!(tape::Tape, dy)
    grads = Any[]
    while !isempty(tape.pullbacks)
        found, dy = pop!(tape.pullbacks)(dy)
        pushfirst!(grads, found)
    end
    return grads
end

"Mean cross-entropy of logits (classes x rows) and its gradient; the loss in Float64, so that ranks' means can be compared."
function cross_entropy(logits, labels)
    shifted = logits .- maximum(logits; dims = 1)
    log_sum = log.(sum(exp.(shifted); dims = 1))
    picked = [CartesianIndex(labels[k] + 1, k) for k in eachindex(labels)]
    d = exp.(shifted .- log_sum)
    d[picked] .-= 1
    return sum(Float64.(vec(log_sum)) .- Float64.(shifted[picked])) / length(labels), d ./ Float32(length(labels))
end
