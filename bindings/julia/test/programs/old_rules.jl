# SPDX-License-Identifier: Apache-2.0
# The ChainRulesCore extension against the stand-in for a version that has no RuleConfig.
using MegaDP
push!(LOAD_PATH, joinpath(dirname(@__DIR__), "standins", "old"))
import ChainRulesCore
ChainRulesCore.STANDIN || error("ChainRulesCore is not the stand-in")
include(joinpath(dirname(dirname(@__DIR__)), "ext", "MegaDPChainRulesCoreExt.jl"))
println("loaded")

world = Comm()
dp = DataParallel(world, (w = ones(Float32, 2),); lr = 0.0)
step!(dp, ChainRulesCore.Tangent{NamedTuple}(w = ChainRulesCore.Thunk(() -> [3.0, 4]))).grad_norm ≈ 5 || error("the norm is wrong")
ChainRulesCore.rrule(local_rank, world)[1] == 0 || error("the rank is wrong")
try
    ChainRulesCore.rrule(MegaDP.run_layer, x -> x, 1)
catch problem
    println(problem.kind, " ", occursin("0.10.4", problem.text))
end
