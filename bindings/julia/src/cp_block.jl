# SPDX-License-Identifier: Apache-2.0
# One block of an attention over cut sequences: the library's call of the caller's function, and a plain one.

"What a call takes along through the library: the function of blocks, and what it has thrown."
mutable struct Attending
    f::Any
    problem::Any
end

"For `mdp_cp_attention_fn`. `@waiting` holds a Ctrl-C back, which here may come as in any code of Julia's."
function attend_block(context, raw)
    attending = unsafe_pointer_to_objref(context)::Attending
    return inside(attending) do
        Base.reenable_sigint() do
            attending.f(block_of(unsafe_load(raw)))
            Int32(0)
        end
    end
end

function block_of(raw)
    array(pointer) = pointer == C_NULL ? nothing : wrap_strided(unsafe_load(pointer))
    bounds(pointer) = raw.bound_count == 0 ? nothing : [Int(unsafe_load(pointer, i)) for i in 1:raw.bound_count]
    q, k = array(raw.q), array(raw.k)
    return (causal = raw.mask == Raw.MDP_CP_MASK_CAUSAL, q_range = (1:size(q, 3)) .+ Int(raw.q_begin), k_range = (1:size(k, 3)) .+ Int(raw.k_begin),
            heads = (1:size(q, 2)) .+ Int(raw.head_begin), q = q, k = k, v = array(raw.v), out = array(raw.out), lse = array(raw.lse),
            grad_out = array(raw.grad_out), grad_q = array(raw.grad_q), grad_k = array(raw.grad_k), grad_v = array(raw.grad_v),
            q_bounds = bounds(raw.q_bounds), k_bounds = bounds(raw.k_bounds))
end

"Which keys the queries of a block see, (keys, queries); `nothing`: all."
function visible(block)
    block.causal || block.q_bounds !== nothing || return nothing
    seen = trues(size(block.k, 3), size(block.q, 3))
    if block.q_bounds !== nothing
        fill!(seen, false)
        for i in 1:length(block.q_bounds)-1
            seen[block.k_bounds[i]+1:block.k_bounds[i+1], block.q_bounds[i]+1:block.q_bounds[i+1]] .= true
        end
    end
    return block.causal ? seen .& [key <= query for key in axes(seen, 1), query in axes(seen, 2)] : seen
end

"""
    MegaDP.plain_attention(block; scale = 1 / sqrt(head_dim))

What a [`CpAttention`](@ref) computes a block by where it is given no function: products of Float32 matrices, a head at a time, with all scores of it
in memory. For arrays of the host. Local.
"""
function plain_attention(block; scale = 1 / sqrt(size(block.q, 1)))
    seen, group = visible(block), size(block.q, 2) ÷ size(block.k, 2)
    if block.grad_out !== nothing
        fill!(block.grad_k, 0)
        fill!(block.grad_v, 0)
    end
    for b in axes(block.q, 4), h in axes(block.q, 2)
        matrix(array, head = h) = convert(Matrix{Float32}, view(array, :, head, :, b))
        kv = cld(h, group)
        q, k, v = matrix(block.q), matrix(block.k, kv), matrix(block.v, kv)
        scores = (transpose(k) * q) .* Float32(scale)
        seen === nothing || (scores[.!seen] .= -Inf32)
        if block.grad_out === nothing
            block.lse[h, :, b], block.out[:, h, :, b] = plain_forward(scores, v)
        else
            grads = plain_backward(scores, q, k, v, matrix(block.out), view(block.lse, h, :, b), matrix(block.grad_out), Float32(scale))
            block.grad_q[:, h, :, b] = grads[1]
            block.grad_k[:, kv, :, b] .+= grads[2]
            block.grad_v[:, kv, :, b] .+= grads[3]
        end
    end
end

function plain_forward(scores, v)
    most = maximum(scores; dims = 1)
    weights = ifelse.(most .== -Inf32, 0f0, exp.(scores .- most))
    sums = sum(weights; dims = 1)
    return vec(most .+ log.(sums)), (v * weights) ./ max.(sums, floatmin(Float32))
end

function plain_backward(scores, q, k, v, out, lse, grad_out, scale)
    weights = ifelse.(scores .== -Inf32, 0f0, exp.(scores .- transpose(lse)))
    delta = sum(grad_out .* out; dims = 1)
    grad_scores = weights .* (transpose(v) * grad_out .- delta) .* scale
    return k * grad_scores, q * transpose(grad_scores), grad_out * transpose(weights)
end
