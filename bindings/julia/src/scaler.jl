# SPDX-License-Identifier: Apache-2.0
# Loss scales that follow overflows.

"""
    Scaler(; scale = 65536.0, growth_factor = 2.0, backoff_factor = 0.5, growth_interval = 2000, hysteresis = 1, min_scale = 1.0,
           clean_steps = 0, overflows = 0, constant = false)

A loss scale that follows overflows on the device, without asking the host: after `growth_interval` steps without one it grows by `growth_factor`;
after `hysteresis` overflows without growth between it backs off by `backoff_factor`, with the last of them and each further one, but not below
`min_scale`. As Megatron-LM's dynamic scaler, and with `hysteresis = 1` torch.amp.GradScaler. A `constant` one stays. `clean_steps` (since the last
overflow or growth) and `overflows` (since the last growth) are how far it has come. See [`set_scaler!`](@ref).
"""
Base.@kwdef struct Scaler
    scale::Float64 = 65536.0
    growth_factor::Float64 = 2.0
    backoff_factor::Float64 = 0.5
    growth_interval::Int = 2000
    hysteresis::Int = 1
    min_scale::Float64 = 1.0
    clean_steps::Int = 0
    overflows::Int = 0
    constant::Bool = false
end

const SCALER_COUNTS = ((:growth_interval, 1), (:hysteresis, 1), (:clean_steps, 0), (:overflows, 0))
const SCALER_NUMBERS = (:scale, :growth_factor, :backoff_factor, :min_scale)
const SCALER_FIELDS = (SCALER_NUMBERS..., map(first, SCALER_COUNTS)...)

# The library takes 0 for a default; who says it here means it.
function raw_scaler(scaler)
    for (name, least) in SCALER_COUNTS
        value = getfield(scaler, name)
        least <= value <= typemax(UInt32) || throw(invalid("$name is $value; it has to be from $least to $(typemax(UInt32))"))
    end
    for name in SCALER_NUMBERS
        getfield(scaler, name) == 0 && throw(invalid("$name is 0; it has to be more than 0"))
    end
    return Raw.mdp_scaler(; (name => getfield(scaler, name) for name in SCALER_FIELDS)...,
                          flags = scaler.constant ? Raw.MDP_SCALER_CONSTANT : 0)
end

"""
    set_scaler!(optimizer, scaler)
    set_scaler!(optimizer; keywords...)

Gives the optimizer a [`Scaler`](@ref), by itself or by its keywords, or none with `nothing`: steps divide gradients by its scale, skip those that
are not finite, and take `loss_scale` no more. Waits for the last step. Collective over the world, with equal values; blocking. Throws
`MegaDPError`: `:INVALID`, `:DESYNC`, and those of a lost communicator.
"""
set_scaler!(optimizer::Optimizer, scaler::Scaler) = check(Raw.mdp_optimizer_set_scaler(optimizer, Ref(raw_scaler(scaler))))
set_scaler!(optimizer::Optimizer, ::Nothing) = check(Raw.mdp_optimizer_set_scaler(optimizer, C_NULL))
set_scaler!(optimizer::Optimizer; keywords...) = set_scaler!(optimizer, Scaler(; keywords...))

"""
    scaler(optimizer) -> Scaler

The scaler as the last step has left it, which is waited for; as it is, it may be given to [`set_scaler!`](@ref). Local. Throws `MegaDPError`:
`:STATE` (none).
"""
function scaler(optimizer::Optimizer)
    out = Ref(Raw.mdp_scaler())
    check(Raw.mdp_optimizer_scaler(optimizer, out))
    return Scaler(; (name => getfield(out[], name) for name in SCALER_FIELDS)..., constant = out[].flags & Raw.MDP_SCALER_CONSTANT != 0)
end

"""
    scale(optimizer) -> Vector{Float32}

What the loss is to be multiplied by, where steps keep it: one element, not to be written. On a device it is that device's array, to be read in
the order of the stream that steps are given. Valid while it lives. Local. Throws `MegaDPError`: `:STATE` (no scaler).
"""
function scale(optimizer::Optimizer)
    tensor = Ref(Raw.mdp_tensor())
    check(Raw.mdp_optimizer_scale(optimizer, tensor))
    return view_of(optimizer, tensor[])
end

has_scaler(optimizer) = Raw.mdp_optimizer_scale(optimizer, Ref(Raw.mdp_tensor())) == Raw.MDP_OK
