# SPDX-License-Identifier: Apache-2.0
# The rule by which a wrapped layer hands over its gradients: in the layer's own pullback, while backward has yet to do the layers before it. And
# the rules of tensor parallelism, whose pullbacks are collective: all ranks run them, in the same order, so nothing of them is a thunk.
module MegaDPChainRulesCoreExt

using ChainRulesCore: ChainRulesCore, AbstractThunk, AbstractZero, NoTangent, Tangent, unthunk
using MegaDP: MegaDP

# Since 0.10.4 rules can call the AD that called them. The package's own environment asks for 1; elsewhere this file may be included by hand.
@static if isdefined(ChainRulesCore, :RuleConfig)
    using ChainRulesCore: HasReverseMode, RuleConfig, rrule_via_ad

    function ChainRulesCore.rrule(config::RuleConfig{>:HasReverseMode}, ::typeof(MegaDP.run_layer), layer, arguments...)
        tree = (layer, arguments)
        MegaDP.forward_begins(tree)
        output, pullback = rrule_via_ad(config, layer, arguments...)
        function run_layer_pullback(change)
            tangents = map(unthunk, pullback(unthunk(change)))
            MegaDP.backward_ends(tree, (tangents[1], tangents[2:end]))
            return (NoTangent(), tangents...)
        end
        return output, run_layer_pullback
    end
else
    ChainRulesCore.rrule(::typeof(MegaDP.run_layer), arguments...) =
        throw(MegaDP.failure(MegaDP.Raw.MDP_E_UNSUPPORTED, "layers can be wrapped by `overlap` from ChainRulesCore 0.10.4 on, and this one is " *
                             "older; without `overlap`, gradients are handed over at the end of backward"))
end

# A tangent answers to every name of its primal, with zero where it has nothing; one of something mutable (since 1.17) only to those it has.
const Structural = isdefined(ChainRulesCore, :MutableTangent) ? Union{Tangent,ChainRulesCore.MutableTangent} : Tangent
MegaDP.plain(thunk::AbstractThunk) = MegaDP.plain(unthunk(thunk))
MegaDP.absent(::AbstractZero) = true
MegaDP.entries(tangent::Structural) = keys(tangent)
MegaDP.child(::AbstractZero, _) = nothing
MegaDP.child(tangent::Structural, key) = key in keys(tangent) ? MegaDP.plain(getproperty(tangent, key)) : nothing

"The gradient of `output` as an array with strides, of the same type; an AD may have another, or none, where other ranks have one."
function dense_change(change, output)
    change = unthunk(change)
    change isa AbstractZero && return fill!(similar(output), 0)
    return eltype(change) == eltype(output) && MegaDP.strided(change) !== nothing ? change : copyto!(similar(output), change)
end

function ChainRulesCore.rrule(region::MegaDP.TpRegion, x::AbstractArray)
    y = region(x)
    region_pullback(change) = (NoTangent(), MegaDP.backward!(region, MegaDP.fresh(x), dense_change(change, y)))
    return y, region_pullback
end

function ChainRulesCore.rrule(layer::MegaDP.TpLinear, x::AbstractArray, arrays...)
    y = layer(x, arrays...)
    function linear_pullback(change)
        dx, grads = MegaDP.fresh(x), map(array -> array === nothing ? nothing : MegaDP.fresh(array), arrays)
        weight, grad_weight = isempty(arrays) ? (nothing, nothing) : (arrays[1], grads[1])
        MegaDP.backward!(layer, dense_change(change, y), x; weight = weight, grad_input = dx, grad_weight = grad_weight,
                         grad_bias = length(grads) > 1 ? grads[2] : nothing)
        return (NoTangent(), dx, map(grad -> grad === nothing ? NoTangent() : grad, grads)...)
    end
    return y, linear_pullback
end

function ChainRulesCore.rrule(embedding::MegaDP.TpEmbedding, ids::AbstractArray, weight::AbstractMatrix)
    y = embedding(ids, weight)
    embedding_pullback(change) =
        (NoTangent(), NoTangent(), MegaDP.backward!(embedding, MegaDP.fresh(weight), dense_change(change, y), ids))
    return y, embedding_pullback
end

function ChainRulesCore.rrule(loss::MegaDP.TpCrossEntropy, logits::AbstractArray, targets::AbstractArray)
    losses, saved = MegaDP.fresh_floats(logits, size(targets)), MegaDP.fresh_floats(logits, (2, size(targets)...))
    MegaDP.forward!(loss, losses, logits, targets; saved = saved)
    cross_entropy_pullback(change) =
        (NoTangent(), MegaDP.backward!(loss, MegaDP.fresh(logits), dense_change(change, losses), logits, targets, saved), NoTangent())
    return losses, cross_entropy_pullback
end

function ChainRulesCore.rrule(attention::MegaDP.CpAttention, q::AbstractArray, k::AbstractArray, v::AbstractArray)
    out, lse = MegaDP.fresh_outputs(q)
    MegaDP.forward!(attention, out, lse, q, k, v)
    function attention_pullback(change)
        grads = map(MegaDP.fresh, (q, k, v))
        MegaDP.backward!(attention, grads..., dense_change(change, out), q, k, v, out, lse)
        return (NoTangent(), grads...)
    end
    return out, attention_pullback
end

function ChainRulesCore.rrule(halo::MegaDP.Halo, parts::AbstractArray...)
    padded = halo(parts...)
    function halo_pullback(change)
        changes, outputs = length(parts) == 1 ? ((change,), (padded,)) : (map(i -> given(change, i), 1:length(parts)), padded)
        grads = map((one, output) -> copyto!(MegaDP.fresh(output), dense_change(one, output)), Tuple(changes), outputs)
        MegaDP.backward!(halo, grads...)
        return (NoTangent(), map((grad, part) -> copyto!(MegaDP.fresh(part), MegaDP.own(halo, grad)), grads, parts)...)
    end
    return padded, halo_pullback
end

"The gradient of one of several outputs, which may have none."
function given(change, i)
    found = MegaDP.child(unthunk(change), i)
    return found === nothing ? NoTangent() : found
end

ChainRulesCore.@non_differentiable MegaDP.random_seed(::Any, ::Any, ::Any)
ChainRulesCore.@non_differentiable MegaDP.cp_part(::Any, ::Any, ::Any)
ChainRulesCore.@non_differentiable MegaDP.local_rank(::Any)
ChainRulesCore.@non_differentiable MegaDP.total_workers(::Any)
ChainRulesCore.@non_differentiable MegaDP.barrier(::Any)

end
