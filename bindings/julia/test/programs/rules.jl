# SPDX-License-Identifier: Apache-2.0
# Two ranks: each rule, two optimizers in a step, and a scaler that all ranks follow.
include("rank.jl")
include(joinpath(@__DIR__, "..", "formulas.jl"))

Comm() do comm
    for (one, other) in zip(ALL_RULES, circshift(collect(ALL_RULES), 2))
        buffer = two_groups(comm)
        optimizers = [Optimizer(buffer; rule = one, said_of(one, FIRST)..., first_param_group = 1),
                      Optimizer(buffer; rule = other, said_of(other, SECOND)..., first_param_group = 2)]
        for t in 1:TRAINED
            put_gradients(buffer, t)
            step_many!(optimizers; report = false)
        end
        wait(buffer)
        expected = [emulated(one, FIRST, 1)[1], emulated(other, SECOND, 2)[1]]
        report(comm, "together", Int([param_view(buffer, param) for param in 1:2] == expected))
        close(buffer)
    end
    for rule in ALL_RULES
        buffer = two_groups(comm)
        optimizer = Optimizer(buffer; rule = rule, param_groups = [said_of(rule, FIRST), said_of(rule, SECOND)])
        for t in 1:TRAINED
            put_gradients(buffer, t)
            step!(optimizer)
        end
        expected = [emulated(rule, FIRST, 1)[1], emulated(rule, SECOND, 2)[1]]
        report(comm, "alone", Int([param_view(buffer, param) for param in 1:2] == expected))
        close(buffer)
    end
    dp = DataParallel(comm, (w = zeros(Float32, 4),); rule = :sgd)
    set_scaler!(dp.optimizer; scale = 1024, growth_interval = 3, hysteresis = 2)
    scales = map(collect(PATTERN)) do kind
        step!(dp, (w = fill(kind == 'x' && local_rank(comm) == 1 ? Inf32 : 1.0f0, 4),))
        Int(MegaDP.scaler(dp.optimizer).scale)
    end
    report(comm, "scales", scales)
    different = caught(() -> set_scaler!(dp.optimizer; scale = 2.0^(4 + local_rank(comm))))
    report(comm, "different", different.kind)
end
