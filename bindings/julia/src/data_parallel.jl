# SPDX-License-Identifier: Apache-2.0
# A model whose parameters are the library's memory, its gradients on their way while backward goes on, and its optimizer.

"""
    DataParallel(comm_or_grid, model; async = false, use_order = nothing, param_group = name -> 1, rule = :adamw, lr = …, betas = …,
                 weight_decay = …, max_grad_norm = …, sharding = …, …)

Takes over the parameters of a model: all floating-point arrays (Float32, Float16, BFloat16) of nested tuples and named tuples, such as Lux's
`ps`, and with Functors.jl loaded of structs, such as Flux's layers; with Optimisers.jl loaded only what is `trainable`. Rank 0's values
are given to all ranks. `dp.model` is the same model with arrays that are memory of the library; use it from here on. `deepcopy(dp.model)` is a
copy in ordinary arrays, to evaluate, say. An array that stands at several places, also as its `transpose` or `adjoint`, stays one parameter, and
the same array where it is not trained; other arrays that share memory are refused. What a function has captured is seen as Functors.jl sees it
(0.5 does). Of a `Diagonal` the diagonal is the parameter. Other matrices whose entries are not all numbers of their own (triangular, symmetric,
sparse, …) are refused: make the array of their numbers the parameter, and wrap it where it is used, as in `UpperTriangular(w) * x`.

    for batch in data
        grads = gradient(model -> loss(model, batch), dp.model)[1]
        step!(dp, grads)
    end

What is written into arrays of `dp.model` between steps, the same on all ranks, is kept by the next step: it calls [`changed!`](@ref) where parameters are of
Float16 or BFloat16.

Keywords are those of [`Optimizer`](@ref) and [`Buffer`](@ref). With `async = true`, `step!` returns while new parameters are still gathered;
layers wrapped by [`overlap`](@ref) wait for their own, anything else calls `wait(dp)` before it reads parameters. `use_order`, what
[`use_order(dp.buffer)`](@ref) of an earlier one gave, is for models that list their layers in another order than they use them. `param_group` says each
parameter's group, from 1, by its name (`layers.1.bias`): with `first_param_group = 1` those of other groups are for other
optimizers, `Optimizer(dp.buffer; …)`.

Collective over the world; blocking, for at most the timeout. Throws `MegaDPError` as `Buffer` and `Optimizer`, and `:INVALID` for a
parameter of another type, for parameters that share memory, and without Functors.jl for a function that has arrays in it, naming them.
"""
mutable struct DataParallel{M}
    model::M
    buffer::Buffer
    optimizer::Optimizer
    arrays::Vector{AbstractArray}         # by parameter
    places::Vector{Vector{Any}}           # the paths at which each parameter stands
    expected::Vector{Int}                 # by parameter: how often a wrapped layer has run forward since the last step
    arrived::Vector{Int}                  # and backward
    handed::Vector{Any}                   # and what of the gradient they have handed over, a HandedOver
    lock::ReentrantLock
    async::Bool
    gathering::Union{Request,Nothing}     # the last step's, where its parameters may be still on their way
    rounded::Bool                         # of some parameters the optimizer has masters with more digits
    held::Union{Some,Nothing}             # the tree whose gradients the library has, where another thread's call kept the step from being taken
    again::Vector{Bool}                   # by parameter: whether a wrapped layer has run forward after its gradient came, as in another batch
    came::Bool                            # a gradient of this batch
    broken::Bool                          # and another was refused
    begun::Int                            # the buffer's, when all this was noted
end

"Whether a keyword is the optimizer's; the others are the buffer's. Its constructor says so, and no list that could fall behind."
is_optimizers(keyword) = keyword == :rule || hasmethod(create_optimizer, Tuple{Buffer,UInt32}, (keyword,))

function DataParallel(over::Union{Comm,Grid}, model; async = false, use_order = nothing, param_group = name -> 1, keywords...)
    arrays, places = collect_parameters(model)
    isempty(arrays) && throw(invalid("the model, a $(nameof(typeof(model))), has no parameters that can be seen" *
                                     (struct_parts[] === struct_parts_of_none ? "; structs can be with Functors.jl loaded" : "")))
    pick(chosen) = (; (key => value for (key, value) in keywords if is_optimizers(key) == chosen)...)
    orders = something(use_order, zeros(Int, length(arrays)))
    length(orders) == length(arrays) || throw(invalid("use_order has $(length(orders)) entries; the model has $(length(arrays)) parameters"))
    names = [name_of(first(path)) for path in places]
    params = [Param(names[i], arrays[i]; use_order = orders[i], param_group = param_group(names[i])) for i in eachindex(arrays)]
    buffer = Buffer(over, params; pick(false)...)
    try
        for (i, array) in enumerate(arrays)
            write!(buffer, i, array)
        end
        bcast!(buffer)
        views = AbstractArray[param_view(buffer, i) for i in eachindex(arrays)]
        optimizer = Optimizer(buffer; pick(true)...)
        numbers = Dict{Any,Int}(path => i for (i, paths) in enumerate(places) for path in paths)
        # An array that stands where nothing is trained too stays tied there.
        tied = IdDict{Any,Int}(array => i for (i, array) in enumerate(arrays) if !isbits(array))
        number(leaf, path) = get(numbers, path, isbits(leaf) ? 0 : get(tied, leaf, 0))
        own = map_leaves((leaf, path, _) -> (i = number(leaf, path); i > 0 ? views[i] : leaf), model)
        dp = DataParallel(own, buffer, optimizer, views, places, zeros(Int, length(arrays)), zeros(Int, length(arrays)),
                          Any[nothing for _ in arrays], ReentrantLock(), async, nothing,
                          any(array -> has_master(eltype(array), get(keywords, :no_master, false)), arrays), nothing,
                          fill(false, length(arrays)), false, false, buffer.begun)
        remember(dp)
        return dp
    catch
        close(buffer)
        rethrow()
    end
end

"([array, …], [[path, …], …]) of a model's parameters, in order of their first place: that of the forward pass."
function collect_parameters(model)
    numbers, arrays, places = IdDict{Any,Int}(), AbstractArray[], Vector{Any}[]
    map_leaves(model) do leaf, path, trained
        trained && seen_through(leaf, path, AbstractArray{<:Number}) isa AbstractArray{<:Number} && !(eltype(leaf) <: Integer) || return leaf
        eltype(leaf) == Float64 && throw(invalid("parameter '$(name_of(path))' is of Float64; the library trains Float32, Float16 and BFloat16"))
        all_its_own(leaf) ||
            throw(invalid("parameter '$(name_of(path))' is of type $(nameof(typeof(leaf))), in whose place the model would have an ordinary array, " *
                          "all of it trained. Make the array of its numbers the parameter, and wrap it where it is used, as in " *
                          "UpperTriangular(w) * x; or leave it out of what is `trainable`, with Optimisers.jl loaded"))
        if isbits(leaf) || !haskey(numbers, leaf)  # what has no identity is tied to nothing
            push!(arrays, leaf)
            push!(places, [])
        end
        push!(places[isbits(leaf) ? length(arrays) : get!(numbers, leaf, length(arrays))], path)
        return leaf
    end
    refuse_shared(arrays, map(paths -> name_of(first(paths)), places))
    return arrays, places
end

"""
Whether an array's entries are numbers of their own, so that an ordinary array can stand in its place. Of what lies in the memory of another array as it lies
there, that one says so; arrays of other packages (SArray) where they are nothing but their entries.
"""
all_its_own(::Union{DenseArray,AbstractRange}) = true
all_its_own(x::Union{Wrapper,Base.ReinterpretArray}) = all_its_own(parent(x))
all_its_own(x::AbstractArray) =
    parent(x) === x && all(isbitstype, fieldtypes(typeof(x))) && sizeof(typeof(x)) == length(x) * sizeof(eltype(x))

"Whether the optimizer has masters of parameters of a type, which hold more digits: `no_master` is of bf16 ones."
has_master(type, no_master) = type == Float16 || type != Float32 && !no_master

"""
    close(dp)

Drops optimizer and buffer; the arrays of `dp.model` stay valid. Local.
"""
function Base.close(dp::DataParallel)
    forget(dp)
    close(dp.optimizer)
    close(dp.buffer)
end

Base.deepcopy_internal(dp::DataParallel, ::IdDict) = not_copied(dp)

Base.show(io::IO, dp::DataParallel) =
    print(io, "DataParallel(", nameof(typeof(dp.model)), ", ", length(dp.arrays), isopen(dp.buffer) ? " parameters)" : " parameters, closed)")

"""
    wait(dp)

Returns when all parameters hold their values after the last step. Local; waits in slices of 50 ms, for at most the timeout.
"""
function Base.wait(dp::DataParallel)
    dp.gathering === nothing || wait(dp.gathering)
    dp.gathering = nothing
    return nothing
end

"""
    microbatch!(dp; last)

Says whether the microbatch that begins is the step's last: gradients of the earlier ones, handed over by [`put!`](@ref), are added up here.
Local. Throws `MegaDPError`: `:STATE`.
"""
function microbatch!(dp::DataParallel; last::Bool)
    microbatch!(dp.buffer; last = last)
    begin_anew(dp)
end

"""
    zero_grad!(dp)

Gives a batch up, as after an exception in backward that the program catches: throws away the gradients that have come since the last step, also those
that have left, and the next batch can begin. Parameters stay. After a step there is nothing to throw away, and no need of it.

Collective over the world: all ranks give the batch up; waits in slices of 50 ms. Where one rank alone gives a batch up, and the others are in
`step!`, its `zero_grad!(dp)` makes that fail by `:STATE`, which names it, and all can begin the next batch: if it has not come to all of its
gradients, and `missing` is `:error`. Otherwise that rank calls `step!(dp)`: the step has what has come, and zero for the rest. Throws `MegaDPError`: `:STATE` (a
gradient is lent; another thread's call is under way), and those of a lost communicator.
"""
function zero_grad!(dp::DataParallel)
    try
        sync!(dp.buffer)  # other ranks may wait for what has left here
    catch problem
        # What was missing, or not finite, is thrown away with the rest.
        problem isa MegaDPError && problem.kind in (:STATE, :NUMERIC) && !is_busy(problem) || rethrow()
    end
    zero_grad!(dp.buffer)
    begin_anew(dp)
end

function begin_anew(dp)
    fill!(dp.expected, 0)
    forget_handed(dp)
end

"Layers that have run forward may still run backward."
function forget_handed(dp)
    fill!(dp.arrived, 0)
    fill!(dp.handed, nothing)
    fill!(dp.again, false)
    dp.held, dp.came, dp.broken, dp.begun = nothing, false, false, dp.buffer.begun
    return nothing
end

"Forgets what was handed over where the buffer itself has begun anew, by `zero_grad!(dp.buffer)`."
refresh(dp) = dp.begun == dp.buffer.begun ? nothing : forget_handed(dp)

is_busy(problem) = problem.kind == :STATE && occursin(" is in use by ", problem.text)

const GIVING_UP = "call zero_grad!(dp) on all ranks before the next batch"

"Puts a gradient of parameter `i`. One that has come already is mostly of a batch that was given up."
function hand!(dp, i, gradient; more)
    try
        put!(dp.buffer, i, gradient; more = more)
        dp.came = true
        return nothing
    catch problem
        dp.broken = dp.came || any(>(0), dp.arrived)
        problem isa MegaDPError && occursin("is ready already", problem.text) || rethrow()
        throw(failure(Raw.MDP_E_STATE, "the gradient of parameter $i, '$(dp.buffer.params[i].name)', has come already since the last step. If that was of a " *
                                       "batch that was given up, as after an exception in backward, $GIVING_UP; gradients of several batches are added up " *
                                       "where each begins with microbatch!(dp; last = …)"; param = i))
    end
end

"Throws where gradients of a batch that was given up may be there: what comes would be added to them."
function refuse_rest(dp, found)
    dp.broken && throw(failure(Raw.MDP_E_STATE, "a gradient was refused, and others of the same batch have come: $GIVING_UP"))
    for i in eachindex(dp.arrays)
        dp.again[i] && dp.arrived[i] < dp.expected[i] && isempty(found[i]) || continue
        throw(failure(Raw.MDP_E_STATE, "wrapped layers with parameter $i, '$(dp.buffer.params[i].name)', ran forward $(dp.expected[i]) times and backward " *
                                       "$(dp.arrived[i]) times, in turns. If a batch was given up, $GIVING_UP; if not, give step! the gradients"; param = i))
    end
end

"""
    put!(dp, grads)

Hands over the gradients of a microbatch: a tree of the model's shape, as `gradient` returns it, with `nothing` where there is none. What
wrapped layers have put already is left alone. `step!(dp, grads)` does this by itself for the last microbatch. Local. Throws `MegaDPError`:
`:INVALID` (the tree is of another shape than the model: names the place; or it has another gradient than wrapped layers have handed over: names the
parameter; nothing of the tree has been put), `:STATE` (a gradient has come already since the last step, of a batch that was given up, say: see
[`zero_grad!(dp)`](@ref)), and as `put!` of a `Buffer`.
"""
function Base.put!(dp::DataParallel, grads)
    refresh(dp)
    compare(isowned, dp.model, grads)
    found = [filter(g -> g isa AbstractArray, map(path -> at(grads, path), paths)) for paths in dp.places]
    refuse_rest(dp, found)
    foreach(i -> dp.arrived[i] > 0 && refuse_other(dp, i, found[i]), eachindex(dp.arrays))
    # As backward finds them: buckets fill one after another.
    for i in sort(collect(eachindex(dp.arrays)); by = i -> (dp.buffer.params[i].use_order, i), rev = true)
        if dp.arrived[i] > 0
            # A layer that ran more often forward than backward promised more than came.
            dp.arrived[i] < dp.expected[i] && nothing_more!(dp.buffer, i)
            continue
        end
        for (k, gradient) in enumerate(found[i])
            hand!(dp, i, gradient; more = k < length(found[i]))
        end
    end
end

"""
    step!(dp, grads = nothing; others = (), lr = nothing, loss_scale = nothing, grad_divisor = nothing, report = true)
    step!(f, dp, grads = nothing; …)

Ends a training step: hands over the gradients that wrapped layers have not (`grads` as in [`put!`](@ref)), waits until all are reduced, and
takes the optimizer's step, together with that of `others` of `dp.buffer` as in [`step_many!`](@ref); with the rule `:caller` among them `f` updates
pieces. Returns what [`step!`](@ref) of the optimizer does; with `async = true` in `DataParallel`, while parameters are still gathered.

Collective over the world; waits in slices of 50 ms. Throws `MegaDPError`: `:STATE` (a parameter without a gradient: names it and the rank, on
all ranks; gradients of a batch that was given up are there), `:INVALID` (as `put!`), `:NUMERIC`, and those of a lost communicator. Parameters are
then what they were. After `:NUMERIC`, and after `:STATE` of a parameter without a gradient, the next step can begin; after `:INVALID` too where nothing had
been handed over. Otherwise the gradients that have come stay, and are never added to another batch's: after `:INVALID` the same step can be
taken with the right tree; [`zero_grad!(dp)`](@ref) on all ranks throws them away. Where another thread's call is under way (`:STATE`, "is in use by")
`step!(dp)`, or the same call, goes on.
"""
step!(dp::DataParallel, grads = nothing; keywords...) = step_model!(nothing, dp, grads; keywords...)
step!(f::Function, dp::DataParallel, grads = nothing; keywords...) = step_model!(f, dp, grads; keywords...)

function step_model!(f, dp, grads; others = (), keywords...)
    try
        refresh(dp)
        # The same tree is not handed over twice.
        dp.held === nothing || !(grads === nothing || grads === something(dp.held)) ? put!(dp, grads) : nothing
        # Masters follow what was written into parameters in place, as Float32 parameters do, which are their own.
        dp.rounded && changed!(dp.buffer)
        answer = step_listed(f, Optimizer[dp.optimizer, others...]; async = dp.async, keywords...)
        dp.gathering = dp.async ? answer[2] : nothing
        begin_anew(dp)
        return dp.async ? answer[1] : answer
    catch problem
        # Another thread's call is in the way, on this rank alone: the gradients are there for the next try.
        if problem isa MegaDPError && is_busy(problem)
            grads === nothing && dp.held !== nothing || (dp.held = Some(grads))
            rethrow()
        end
        # Refused where gradients are there that were not reduced: then what is noted of them stays too.
        Raw.mdp_microbatch_begin(dp.buffer, 1) < 0 || begin_anew(dp)
        rethrow()
    end
end
