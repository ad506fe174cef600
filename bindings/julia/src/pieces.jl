# SPDX-License-Identifier: Apache-2.0
# Steps whose updates are the caller's: a function that gets what this rank owns of each parameter. No C function calls Julia: the step is
# cut open (mdp_optimizer_step_begin, _next, _finish), so that tasks, Ctrl-C and exceptions are as in any loop.

"""
    elementwise(rule) -> Bool

Whether a rule of Optimisers.jl's API updates each element of an array by that element alone, so that it may be given pieces of parameters: true of
those of Optimisers.jl that do, to be said of a rule of one's own (`MegaDP.elementwise(::MyRule) = true`).
"""
elementwise(rule) = false

"Refuses values of a group that the update behind a rule of another package does not look at."
refuse_values(update, names) = nothing

said_names(; keywords...) = [name for (name, value) in keywords if value !== nothing]

# The library takes names as lines, and would not see these faults.
function lines_of(names)
    for name in names
        name = string(name)
        isempty(name) || any(in(name), ('\n', '\0')) || continue
        throw(invalid("state has the name $(repr(name)); names are of 1 to 64 letters, digits, '_', '-' and '.'"))
    end
    return join(names, '\n')
end

"What `param_states` says, for the library: names, and of each the bytes of every parameter."
kept_bytes(buffer, given) = Tuple{String,Vector{UInt64}}[(kept_name(name), bytes_of_each(buffer, name, of)) for (name, of) in pairs(given)]

kept_name(name) = '\0' in string(name) ? throw(invalid("param_states has the name $(repr(name)), with a NUL in it")) : string(name)

function bytes_of_each(buffer, name, of)
    of isa AbstractVector && length(of) != length(buffer) &&
        throw(invalid("param_states gives $name $(length(of)) numbers of bytes; there are $(length(buffer)) parameters"))
    bytes = zeros(UInt64, length(buffer))
    for (which, count) in pairs(of)
        count >= 0 || throw(invalid("param_states gives $name $count bytes of $(repr(which)); it has to be 0 or more"))
        bytes[number_of(buffer, which)+1] = count
    end
    return bytes
end

"An array over memory that a piece lends, which keeps the optimizer."
function lent_array(optimizer, type, address, count)
    count == 0 && return type[]  # no memory to keep; and all empty arrays may be one object
    holders, pointer = optimizer.holders, live(optimizer)
    array = wrap(Val(optimizer.buffer.on_device ? 2 : 1), type, address, (count,))
    Threads.atomic_add!(holders, 1)
    finalizer(_ -> let_go(holders, pointer), keeper(array))
    return array
end

function piece_of(optimizer, raw)
    array(address) = lent_array(optimizer, Float32, address, Int(raw.count))
    bytes(k) = lent_array(optimizer, UInt8, unsafe_load(raw.param_states, k), Int(unsafe_load(raw.param_state_bytes, k)))
    names = Tuple(optimizer.names)
    return (optimizer = Int(raw.optimizer) + 1, param = Int(raw.param) + 1, range = (1:Int(raw.count)) .+ Int(raw.param_begin),
            master = array(raw.master), grad = array(raw.grad),
            state = NamedTuple{names}(ntuple(k -> array(unsafe_load(raw.state, k)), length(names))), step = Int(raw.step), lr = raw.lr,
            betas = (raw.beta1, raw.beta2), eps = raw.eps, weight_decay = raw.weight_decay, momentum = raw.momentum,
            param_states = NamedTuple{Tuple(optimizer.kept)}(ntuple(bytes, length(optimizer.kept))))
end

"Calls `f`, or the update of a rule of another package, with each piece of the step that is under way."
function each_piece(f, optimizers)
    out = Ref(Raw.mdp_update())
    while true
        check(Raw.mdp_optimizer_step_next(optimizers[1], out))
        out[].count == 0 && return nothing
        optimizer = optimizers[out[].optimizer+1]
        something(optimizer.update, f)(piece_of(optimizer, out[]))
    end
end

function step_by_pieces(f, optimizers, pointers; keywords...)
    function update(config)
        check(Raw.mdp_optimizer_step_begin(pointers, length(pointers), config))
        each_piece(f, optimizers)
    end
    try
        return take_step((config, found, out) -> Raw.mdp_optimizer_step_finish(optimizers[1], 0, found, out), Tuple(optimizers);
                         update = update, keywords...)
    catch
        # The others learn of it; where no step is under way any more, the library says so and does nothing.
        Raw.mdp_optimizer_step_finish(optimizers[1], 1, C_NULL, C_NULL)
        rethrow()
    end
end

"A step of optimizers of one buffer; `f` updates the pieces of those whose rule is `:caller`, `nothing` where there is none."
function step_listed(f, optimizers; lr = nothing, keywords...)
    isempty(optimizers) && throw(invalid("optimizers is empty; give at least one"))
    pointers = Ptr{Raw.mdp_optimizer}[live(optimizer) for optimizer in optimizers]
    other = findfirst(optimizer -> optimizer.buffer !== optimizers[1].buffer, optimizers)
    other === nothing || throw(invalid("optimizers[$other] is of another Buffer than optimizers[1]"))
    without = findfirst(optimizer -> optimizer.names !== nothing && optimizer.update === nothing, optimizers)
    f === nothing && without !== nothing &&
        throw(failure(Raw.MDP_E_STATE, "the rule of optimizers[$without] is :caller; step! and step_many! take the function that updates first"))
    foreach(optimizer -> refuse_values(optimizer.update, said_names(; lr = lr)), optimizers)
    GC.@preserve optimizers begin
        f === nothing && all(optimizer -> optimizer.update === nothing, optimizers) ||
            return step_by_pieces(f, optimizers, pointers; lr = lr, keywords...)
        return take_step((config, found, out) -> Raw.mdp_optimizer_step_many(pointers, length(pointers), config, found, out), Tuple(optimizers);
                         lr = lr, keywords...)
    end
end
