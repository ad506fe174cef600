# SPDX-License-Identifier: Apache-2.0
# Attention of a sequence that is cut over ranks against that of the whole sequence in Float64, which each rank has by itself; in arrays that lie
# in several ways; with the package's function of blocks and with one of the tests' own, which looks at where a block is.
include("rank.jl")
include(joinpath("..", "standins.jl"))
load_extensions(:Functors, :ChainRulesCore)
using LinearAlgebra

const DIM, HEADS, SEQUENCE, BATCH = 4, 6, 12, 2
const BOUNDS = [0, 5, 5, 7, 12]
draw(salt, heads) = Float32[sin(3i + 7salt) for i in LinearIndices((DIM, heads, SEQUENCE, BATCH))]

"The same values, where the dimensions lie in another order."
turned(array) = PermutedDimsArray(permutedims(array, (2, 4, 1, 3)), (3, 1, 4, 2))

"The same values in a view that goes backwards through a larger array, with gaps of NaN."
function spread(array)
    wide = fill(eltype(array)(NaN), (2, 3, 2, 2) .* size(array))
    place = view(wide, map((n, k) -> k*n:-k:1, size(array), (1, 3, 2, 2))...)
    return place .= array
end

sequence_of(at) = searchsortedlast(BOUNDS, at - 1)
"What is added to a score, at these positions and this head of all; -Inf where the key is not seen."
function bias(wanted, head, query, key)
    wanted.causal && key > query && return -Inf
    wanted.packed && sequence_of(key) != sequence_of(query) && return -Inf
    return wanted.sloped ? -abs(query - key) * head / 8 : 0.0
end

"out and the three gradients, by the derivative of a softmax as such."
function oracle(wanted, q, k, v, grad_out)
    q, k, v, grad_out = map(array -> Float64.(array), (q, k, v, grad_out))
    out, grad_q, grad_k, grad_v = map(zero, (q, q, k, v))
    for b in 1:BATCH, h in 1:HEADS
        kv = cld(h, HEADS ÷ size(k, 2))
        scores = k[:, kv, :, b]' * q[:, h, :, b] ./ sqrt(DIM) .+ [bias(wanted, h, query, key) for key in 1:SEQUENCE, query in 1:SEQUENCE]
        weights = exp.(scores) ./ sum(exp.(scores); dims = 1)
        out[:, h, :, b] = v[:, kv, :, b] * weights
        change = v[:, kv, :, b]' * grad_out[:, h, :, b]
        change = weights .* (change .- sum(weights .* change; dims = 1)) ./ sqrt(DIM)
        grad_q[:, h, :, b] = k[:, kv, :, b] * change
        grad_k[:, kv, :, b] += q[:, h, :, b] * change'
        grad_v[:, kv, :, b] += grad_out[:, h, :, b] * weights'
    end
    return out, grad_q, grad_k, grad_v
end

"A function of blocks that asks a block for everything that it tells."
function by_places(wanted, block)
    backward, group = block.grad_out !== nothing, size(block.q, 2) ÷ size(block.k, 2)
    backward && (block.grad_k .= 0; block.grad_v .= 0)
    same(i, j) = any(n -> block.q_bounds[n] < i <= block.q_bounds[n+1] && block.k_bounds[n] < j <= block.k_bounds[n+1], 1:length(block.q_bounds)-1)
    for b in axes(block.q, 4), (h, head) in enumerate(block.heads), (i, query) in enumerate(block.q_range)
        kv = cld(h, group)
        seen = [(!block.causal || j <= i) && (block.q_bounds === nothing || same(i, j)) for j in eachindex(block.k_range)]
        scores = [seen[j] ? dot(block.q[:, h, i, b], block.k[:, kv, j, b]) / 2 + bias(wanted, head, query, key) : -Inf
                  for (j, key) in enumerate(block.k_range)]
        backward || (block.lse[h, i, b] = log(sum(exp.(scores))))
        weights = any(seen) ? exp.(scores .- block.lse[h, i, b]) : zeros(length(scores))
        backward || (block.out[:, h, i, b] = sum(weights[j] * block.v[:, kv, j, b] for j in eachindex(weights)))
        backward || continue
        delta = dot(block.grad_out[:, h, i, b], block.out[:, h, i, b])
        change = [weights[j] * (dot(block.grad_out[:, h, i, b], block.v[:, kv, j, b]) - delta) / 2 for j in eachindex(weights)]
        block.grad_q[:, h, i, b] = sum(change[j] * block.k[:, kv, j, b] for j in eachindex(change))
        for j in eachindex(change)
            block.grad_k[:, kv, j, b] += change[j] * block.q[:, h, i, b]
            block.grad_v[:, kv, j, b] += weights[j] * block.grad_out[:, h, i, b]
        end
    end
end

function equal(comm, wanted, form, kv_heads, lay, type = Float32)
    part = reduce(vcat, cp_part(total_workers(comm), local_rank(comm), SEQUENCE; causal = wanted.causal))
    whole = map((salt, heads) -> type.(draw(salt, heads)), (1, 2, 3, 4), (HEADS, kv_heads, kv_heads, HEADS))
    expected = oracle(wanted, whole...)
    f = wanted.sloped ? block -> by_places(wanted, block) : MegaDP.plain_attention
    attention = CpAttention(f, comm; causal = wanted.causal, form = form, bounds = wanted.packed ? BOUNDS : nothing)
    q, k, v, grad_out = map(array -> lay(array[:, :, part, :]), whole)
    out, back = ChainRulesCore.rrule(attention, q, k, v)
    tangents = back(ChainRulesCore.Thunk(() -> grad_out))
    allowed = type == Float32 ? 1e-5 : 2e-2
    apart = map((ours, all) -> maximum(abs.(ours .- all[:, :, part, :])), (out, tangents[2:4]...), expected)
    all(apart .<= allowed) || println("$wanted, $form, $kv_heads heads, $lay: off by $apart")
    return all(apart .<= allowed) && tangents[1] isa ChainRulesCore.NoTangent && attention(q, k, v) == out
end

function all_equal(comm)
    good = true
    for form in (:ring, :all_to_all, :auto), causal in (false, true), packed in (false, true), sloped in (false, true)
        wanted = (causal = causal, packed = packed, sloped = sloped)
        good &= equal(comm, wanted, form, form == :ring ? 2 : HEADS, sloped ? identity : packed ? turned : spread)
    end
    good &= equal(comm, (causal = true, packed = false, sloped = true), :auto, 3, turned)
    return good & equal(comm, (causal = true, packed = false, sloped = false), :ring, 3, identity, Float16)
end

"The last rank's function throws, forward and backward; the communicator stays."
function one_fails(comm)
    mine, ranks = local_rank(comm) + 1, total_workers(comm)
    throws = Ref(true)
    f(block) = throws[] && mine == ranks ? throw(DimensionMismatch("of the block")) : MegaDP.plain_attention(block)
    attention = CpAttention(f, comm; form = :ring)
    q = draw(1, HEADS)
    outputs, grads = MegaDP.fresh_outputs(q), (zero(q), zero(q), zero(q))
    function told(body)
        try
            body()
            return "nothing"
        catch problem
            problem isa DimensionMismatch && return "thrown"
            # Each rank has as many positions as `q`, and begins with its own.
            return occursin(Regex("^rank $(ranks-1): the attention function has thrown, at the block of queries from $(SEQUENCE * (ranks - 1) + 1) " *
                                  "and keys from \\d+ on"), problem.text) ? problem.kind : problem.text
        end
    end
    forward() = MegaDP.forward!(attention, outputs..., q, q, q)
    backward() = MegaDP.backward!(attention, grads..., q, q, q, q, outputs...)
    failed = [told(forward), told(backward)]
    throws[] = false
    return [failed; told(forward); told(backward)]
end

Comm() do comm
    report(comm, "equal", all_equal(comm))
    report(comm, "failed", one_fails(comm))
    uneven = caught(() -> CpAttention(comm; causal = true)(fill(1f0, 4, 2, 5 + local_rank(comm), 1), fill(1f0, 4, 2, 5, 1), fill(1f0, 4, 2, 5, 1)))
    report(comm, "refused", uneven === nothing ? "nothing" : uneven.kind)
end
