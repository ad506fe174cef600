# SPDX-License-Identifier: Apache-2.0
# Linear layers whose weights are cut over tensor-parallel ranks.

const TP_SPLITS = Dict(:column => Raw.MDP_TP_COLUMN, :row => Raw.MDP_TP_ROW)

"""
    TpLinear(comm, split, in => out; bias = true, grad = :unset, sequence = false, gather_output = false, whole_input = false, blocks = (),
             dtype = Float32, buffer = nothing, weight = nothing, check_replicated = false)
    layer(x, weight, bias)
    layer(x)

A linear layer `weight * x .+ bias` of `in` and `out` features whose weight is cut over the ranks of `comm`; with its gradient for ADs that go by
ChainRules. Arrays are those of Flux's `Dense`: `x` is (features, ..., sequence), `weight` (out, in), this rank's part: with `split = :column` some
of its rows (`out` is cut, and so is `bias`), with `:row` some of its columns. They have any strides, and nothing is copied for that. Nothing
is initialised.

- `:column` takes the same `x` on all ranks and gives this rank's features, or all with `gather_output`.
- `:row` takes this rank's features, or all with `whole_input`, and gives the sum over the ranks, with the bias once.
- With `sequence` the last dimension of `x` (`:column`) or of the output (`:row`) is cut over the ranks outside of the layer.
- `grad` must be given where the output is the same on all ranks (`:row` without `sequence`, `gather_output`): `:partial`, if each rank's
  gradient of it is a part, or `:replicated`, if it is the same on all.
- `dtype`, of all arrays, is Float32 or BFloat16 (`:bf16`); gradients of weights may be Float32 too.
- `blocks` are the sizes, along what is cut, of what is fused (q, k, v): each is cut over the ranks by itself.
- With a [`Buffer`](@ref) `weight` and `bias` are numbers or names of its parameters (`bias = false`: none), of `placement = :sharded` over the same
  ranks (the bias of `:row`: `:replicated`, with `sequence` `:partial_sum`): then it is `layer(x)`, which waits for their values, and
  backward hands their gradients over. What is frozen there is given to the call.

The products are a library's, OpenBLAS or oneDNN, found at run time. Collective over `comm`, in the order of its other collectives; blocking.
Throws `MegaDPError`: `:INVALID` (sizes that do not divide; a parameter's size, type or placement), `:UNSUPPORTED` (no such library), `:DESYNC`, and
those of a lost communicator. [`MegaDP.forward!`](@ref) and [`MegaDP.backward!`](@ref) write into arrays that are there.
"""
mutable struct TpLinear <: Handle
    slot::Slot
    comm::Comm
    split::Symbol
    features::Pair{Int,Int}
    ranks::Int
    sequence::Bool
    gather_output::Bool
    row_major::Bool  # as the buffer's
    in_buffer::Bool  # its weights are a buffer's
end
@handle TpLinear mdp_tp_linear
Base.deepcopy_internal(layer::TpLinear, ::IdDict) = layer.in_buffer ? not_copied(layer) : layer
destroy(::TpLinear, pointer::UInt) = Raw.mdp_tp_linear_destroy(Ptr{Raw.mdp_tp_linear}(pointer))

"Numbers of the buffer's parameters, and whether there is a bias."
function parameters_of(buffer, weight, bias)
    if buffer === nothing
        weight === nothing && bias isa Bool ||
            throw(invalid("weight and bias are parameters of a buffer, which is not given; without one, bias is true or false"))
        return 0, 0, bias
    end
    weight === nothing && throw(invalid("weight is not given; with a buffer it is the number or name of a parameter"))
    bias === true && throw(invalid("bias is true; with a buffer it is the number or name of a parameter, or false"))
    return number_of(buffer, weight), bias === false ? 0 : number_of(buffer, bias), bias !== false
end

linear_flags(bias, transposed, sequence, gather_output, whole_input, check_replicated) =
    (bias ? Raw.MDP_TP_LINEAR_BIAS : 0) | (transposed ? Raw.MDP_TP_LINEAR_TRANSPOSED : 0) |
    (sequence ? Raw.MDP_TP_LINEAR_SEQUENCE : 0) | (gather_output ? Raw.MDP_TP_LINEAR_GATHER_OUTPUT : 0) |
    (whole_input ? Raw.MDP_TP_LINEAR_WHOLE_INPUT : 0) | (check_replicated ? Raw.MDP_TP_LINEAR_CHECK_REPLICATED : 0)

function TpLinear(comm::Comm, split::Symbol, features::Pair; bias = true, grad = :unset, sequence = false, gather_output = false,
                  whole_input = false, blocks = (), dtype = Float32, buffer = nothing, weight = nothing, check_replicated = false)
    weight_number, bias_number, has_bias = parameters_of(buffer, weight, bias)
    get(DTYPES, dtype, 0) in (Raw.MDP_DTYPE_F32, Raw.MDP_DTYPE_BF16) ||
        throw(invalid("dtype is $dtype; a TpLinear computes with Float32, or BFloat16 (:bf16)"))
    row_major = buffer !== nothing && buffer.row_major
    sizes = Int64[blocks...]
    out = Ref{Ptr{Raw.mdp_tp_linear}}(C_NULL)
    GC.@preserve sizes buffer begin
        # A matrix of out x in is in the library what its memory is in C: in x out.
        config = Ref(Raw.mdp_tp_linear_config(;
            split = choose(TP_SPLITS, "split", split), in_features = first(features), out_features = last(features),
            blocks = isempty(sizes) ? C_NULL : pointer(sizes), block_count = length(sizes),
            buffer = buffer === nothing ? C_NULL : Base.unsafe_convert(Ptr{Raw.mdp_buffer}, buffer), weight = weight_number,
            bias = bias_number, dtype = dtype_of(dtype), grad = choose(TP_GRADS, "grad", grad),
            flags = linear_flags(has_bias, !row_major, sequence, gather_output, whole_input, check_replicated)))
        check(Raw.mdp_tp_linear_create(comm, config, out))
    end
    return finalizer(close, TpLinear(Slot(UInt(out[])), comm, split, features, total_workers(comm), sequence, gather_output, row_major,
                                    buffer !== nothing))
end

"The size of what the layer makes of `x`. What does not fit is the library's to refuse."
function output_size(layer::TpLinear, x)
    sizes = collect(size(x))
    isempty(sizes) && throw(invalid("x has no dimensions; the first is features"))
    sizes[1] = last(layer.features) ÷ (layer.split == :column && !layer.gather_output ? layer.ranks : 1)
    if layer.sequence && length(sizes) > 1
        sizes[end] = layer.split == :column ? sizes[end] * layer.ranks : sizes[end] ÷ layer.ranks
    end
    return Tuple(sizes)
end

function forward!(layer::TpLinear, y::AbstractArray, x::AbstractArray, weight = nothing, bias = nothing)
    check(Raw.mdp_tp_linear_fwd(layer, borrow(lying(x), false), borrow_or_null(weight, layer.row_major), borrow_or_null(bias, false),
                                borrow_written(y, "y"), stream_of(y), C_NULL))
    return y
end

(layer::TpLinear)(x::AbstractArray, weight = nothing, bias = nothing) =
    forward!(layer, fresh(x, output_size(layer, x)), x, weight, bias)

function backward!(layer::TpLinear, dy::AbstractArray, x; weight = nothing, grad_input = nothing, grad_weight = nothing,
                   grad_bias = nothing, add = false)
    into(array, name, row_major) = array === nothing ? C_NULL : borrow_written(array, name, row_major)
    check(Raw.mdp_tp_linear_bwd(layer, C_NULL, borrow_or_null(x, false), borrow_or_null(weight, layer.row_major), borrow(lying(dy), false),
                                into(grad_input, "grad_input", false), into(grad_weight, "grad_weight", layer.row_major), into(grad_bias, "grad_bias", false),
                                add ? Raw.MDP_GRAD_ADD : 0, stream_of(dy)))
    return nothing
end
