# SPDX-License-Identifier: Apache-2.0
# The rule by which a wrapped layer hands over its gradients: in the layer's own pullback, while backward has yet to do the layers before it.
module MegaDPChainRulesCoreExt

using ChainRulesCore: ChainRulesCore, AbstractThunk, AbstractZero, HasReverseMode, NoTangent, RuleConfig, Tangent, rrule_via_ad, unthunk
using MegaDP: MegaDP

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

MegaDP.plain(thunk::AbstractThunk) = unthunk(thunk)
MegaDP.child(::AbstractZero, _) = nothing
# A Tangent answers to every name of its primal, with zero where it has nothing.
MegaDP.child(tangent::Tangent, key) = MegaDP.plain(getproperty(tangent, key))

ChainRulesCore.@non_differentiable MegaDP.local_rank(::Any)
ChainRulesCore.@non_differentiable MegaDP.total_workers(::Any)
ChainRulesCore.@non_differentiable MegaDP.barrier(::Any)

end
