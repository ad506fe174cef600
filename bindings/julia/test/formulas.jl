# SPDX-License-Identifier: Apache-2.0
# What rules do with an element, in the library's order of operations: Float32 throughout, from constants that were computed in Float64. For
# tests in a world of one rank and for their programs of several.

const ALL_RULES = (:adamw, :adam, :sgd, :sgd_momentum, :sgd_nesterov, :lion)
const FIRST = (lr = 0.03, betas = (0.8, 0.95), eps = 1e-6, weight_decay = 0.1, momentum = 0.7)
const SECOND = (lr = 0.2, betas = (0.5, 0.75), eps = 1e-3, weight_decay = 0.01, momentum = 0.25)
const TRAINED = 20
const ELEMENTS = 37

"The scale after each step that overflows (x) or does not."
const PATTERN = "x.xx...x"
const SCALES = (1024, 1024, 512, 256, 256, 256, 512, 512)

kept_by(rule) = rule in (:adamw, :adam) ? (:exp_avg, :exp_avg_sq) : rule == :lion ? (:exp_avg,) : rule == :sgd ? () : (:momentum_buffer,)

"What of the values the rule has."
function said_of(rule, values)
    names = rule in (:adamw, :adam) ? (:betas, :eps) : rule == :lion ? (:betas,) : rule == :sgd ? () : (:momentum,)
    return NamedTuple{(:lr, :weight_decay, names...)}(values)
end

"By squaring, as the library computes it."
function squared_power(base, exponent)
    result = 1.0
    while exponent != 0
        isodd(exponent) && (result *= base)
        base *= base
        exponent >>= 1
    end
    return result
end

function element(rule, values, t, g, w, a, b)
    lr, decay, momentum = Float32(values.lr), Float32(values.weight_decay), Float32(values.momentum)
    beta1, beta2 = Float32.(values.betas)
    rest1, rest2 = Float32.(1 .- values.betas)
    shrink = Float32(1 - values.lr * values.weight_decay)
    if rule in (:adamw, :adam)
        rule == :adam && (g += decay * w)
        a = beta1 * a + rest1 * g
        b = beta2 * b + rest2 * g * g
        rate = Float32(values.lr / (1 - squared_power(values.betas[1], t)))
        root = Float32(sqrt(1 - squared_power(values.betas[2], t)))
        change = rate * a / (sqrt(b) / root + Float32(values.eps))
        return (rule == :adamw ? w * shrink - change : w - change), a, b
    elseif rule == :lion
        mean = beta1 * a + rest1 * g
        return w * shrink - lr * sign(mean), beta2 * a + rest2 * g, b
    end
    g += decay * w
    rule == :sgd && return w - lr * g, a, b
    a = momentum * a + g
    return w - lr * (rule == :sgd_nesterov ? g + momentum * a : a), a, b
end

gradient_at(param, t, i) = i == 6 ? 0.0f0 : Float32(sin(0.7i + 1.3t + param))
weight_at(i) = cos(0.37f0 * i)

"What a parameter and its state are after all steps."
function emulated(rule, values, param)
    found = map(1:ELEMENTS) do i
        w, a, b = weight_at(i), 0.0f0, 0.0f0
        for t in 1:TRAINED
            w, a, b = element(rule, values, t, gradient_at(param, t, i), w, a, b)
        end
        (w, a, b)
    end
    return first.(found), (getindex.(found, 2), getindex.(found, 3))
end

"A buffer of two parameters in two groups, with their first weights."
function two_groups(comm)
    buffer = Buffer(comm, [Param("w", (ELEMENTS,)), Param("v", (ELEMENTS,); param_group = 2)])
    foreach(param -> write!(buffer, param, weight_at.(1:ELEMENTS)), 1:2)
    return buffer
end

put_gradients(buffer, t) = foreach(param -> put!(buffer, param, Float32[gradient_at(param, t, i) for i in 1:ELEMENTS]), 1:2)

"An update of the caller's: AdamW over a piece."
function adamw!(piece)
    m, v = piece.state
    for i in eachindex(piece.master)
        piece.master[i], m[i], v[i] = element(:adamw, piece, piece.step, piece.grad[i], piece.master[i], m[i], v[i])
    end
end
