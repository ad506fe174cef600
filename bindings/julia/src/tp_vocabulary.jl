# SPDX-License-Identifier: Apache-2.0
# Embeddings, and the cross-entropy of logits, of a vocabulary that is cut over tensor-parallel ranks. Ids and classes count from 1 here and from 0
# in the library.

"A copy of ids as the library's, `Int64` from 0, in the same memory."
function from_zero(ids, argument)
    eltype(ids) <: Integer || throw(invalid("$argument has elements of $(eltype(ids)); they must be integers, counted from 1"))
    return lying(map(id -> id % Int64 - 1, ids))
end

"""
    TpEmbedding(comm, rows; grad = :unset, sequence = false, check_replicated = false)
    embedding(ids, weight)

The columns `ids` of a table of (features, `rows`), as Flux's `Embedding` has it, of which each rank of `comm` has an equal run of columns: `weight` is
this rank's. Ids are integers of any shape, **counted from 1**, the same on all ranks. The output is (features, size of ids...). With its
gradient for ADs that go by ChainRules: each column is summed in float32, in the order of the ids.

`grad` says what comes back of the output: `:partial` (each rank's is a part, they are summed) or `:replicated` (the same on all). With `sequence` the
output is cut along its last dimension, and `grad` is not given. `check_replicated` compares ids over the ranks, for debugging.

Collective over `comm`, in the order of its other collectives; blocking. Throws `MegaDPError`: `:INVALID` (sizes that do not divide; an id that is not
in the table, where the sentence counts from 0), `:DESYNC`, and those of a lost communicator. [`MegaDP.forward!`](@ref) and
[`MegaDP.backward!`](@ref) write into arrays that are there.
"""
struct TpEmbedding
    comm::Comm
    rows::Int
    grad::Symbol
    sequence::Bool
    check_replicated::Bool
end

function TpEmbedding(comm::Comm, rows::Integer; grad = :unset, sequence = false, check_replicated = false)
    choose(TP_GRADS, "grad", grad)
    return TpEmbedding(comm, rows, grad, sequence, check_replicated)
end

Base.show(io::IO, embedding::TpEmbedding) = print(io, "TpEmbedding(", embedding.rows, ")")

embedding_flags(sequence, check_replicated) =
    (sequence ? Raw.MDP_TP_EMBEDDING_SEQUENCE : 0) | (check_replicated ? Raw.MDP_TP_EMBEDDING_CHECK_REPLICATED : 0)

raw_embedding(embedding::TpEmbedding) =
    Ref(Raw.mdp_tp_embedding_config(; grad = choose(TP_GRADS, "grad", embedding.grad), rows = embedding.rows,
                                    flags = embedding_flags(embedding.sequence, embedding.check_replicated)))

"The size of what the embedding makes of `ids`. Sizes that do not divide are the library's to refuse."
function output_size(embedding::TpEmbedding, ids, weight)
    sizes = collect(size(ids))
    embedding.sequence && isempty(sizes) && throw(invalid("ids have no dimensions; with sequence the last is cut"))
    embedding.sequence && (sizes[end] ÷= total_workers(embedding.comm))
    return (size(weight, 1), sizes...)
end

function forward!(embedding::TpEmbedding, y::AbstractArray, ids::AbstractArray, weight::AbstractMatrix)
    check(Raw.mdp_tp_embedding_fwd(embedding.comm, raw_embedding(embedding), borrow(from_zero(ids, "ids"), false), borrow(lying(weight), false),
                                   borrow_written(y, "y"), stream_of(y)))
    return y
end

(embedding::TpEmbedding)(ids::AbstractArray, weight::AbstractMatrix) =
    forward!(embedding, fresh(weight, output_size(embedding, ids, weight)), ids, weight)

function backward!(embedding::TpEmbedding, grad_weight::AbstractMatrix, dy::AbstractArray, ids::AbstractArray; add = false)
    check(Raw.mdp_tp_embedding_bwd(embedding.comm, raw_embedding(embedding), borrow(from_zero(ids, "ids"), false), borrow(lying(dy), false),
                                   borrow_written(grad_weight, "grad_weight"), add ? Raw.MDP_GRAD_ADD : 0, stream_of(grad_weight)))
    return grad_weight
end

"""
    TpCrossEntropy(comm; classes = 0, ignore = nothing, label_smoothing = 0, z_loss = 0, check_replicated = false)
    loss(logits, targets)

The cross-entropy of each of `targets`, as an array of `Float32` of their size, with its gradient for ADs that go by ChainRules. `logits` is (this
rank's classes, size of targets...): each rank of `comm` has an equal run of them. Targets are classes of the whole, integers **counted from 1**,
the same on all ranks, and so are the losses. No rank ever has all logits.

- `classes`: how many there are, if not all that the ranks have: those beyond are padding and do not count.
- `ignore`: a target without loss and gradient, as it stands in `targets` (0, say).
- `label_smoothing`: the target has probability 1 - label_smoothing, each other class label_smoothing / (classes - 1).
- `z_loss` is added times log(sum(exp.(logits)))^2.
- `check_replicated` compares targets over the ranks, for debugging.

Forward is collective over `comm`, in the order of its other collectives; blocking. Throws `MegaDPError`: `:INVALID` (a target that is no class, where
the sentence counts from 0), `:DESYNC`, and those of a lost communicator. [`MegaDP.forward!`](@ref) and [`MegaDP.backward!`](@ref) write into
arrays that are there.
"""
struct TpCrossEntropy
    comm::Comm
    classes::Int
    ignore::Union{Int,Nothing}
    label_smoothing::Float64
    z_loss::Float64
    check_replicated::Bool
end

TpCrossEntropy(comm::Comm; classes = 0, ignore = nothing, label_smoothing = 0, z_loss = 0, check_replicated = false) =
    TpCrossEntropy(comm, classes, ignore, label_smoothing, z_loss, check_replicated)

Base.show(io::IO, loss::TpCrossEntropy) = print(io, "TpCrossEntropy(", loss.classes == 0 ? "" : "classes = $(loss.classes)", ")")

cross_entropy_flags(ignores, check_replicated) =
    (ignores ? Raw.MDP_TP_CROSS_ENTROPY_IGNORE : 0) | (check_replicated ? Raw.MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED : 0)

raw_cross_entropy(loss::TpCrossEntropy) =
    Ref(Raw.mdp_tp_cross_entropy_config(; classes = loss.classes, ignore_index = loss.ignore === nothing ? 0 : loss.ignore - 1,
                                        label_smoothing = loss.label_smoothing, z_loss = loss.z_loss,
                                        flags = cross_entropy_flags(loss.ignore !== nothing, loss.check_replicated)))

function forward!(loss::TpCrossEntropy, losses::AbstractArray, logits::AbstractArray, targets::AbstractArray; saved = nothing)
    check(Raw.mdp_tp_cross_entropy_fwd(loss.comm, raw_cross_entropy(loss), borrow(lying(logits), false),
                                       borrow(from_zero(targets, "targets"), false), borrow_written(losses, "losses"),
                                       saved === nothing ? C_NULL : borrow_written(saved, "saved"), stream_of(losses)))
    return losses
end

"`fresh` of Float32s."
function fresh_floats(like, sizes)
    made = similar(like, Float32, sizes)
    return strided(made) === nothing ? Array{Float32}(undef, sizes) : made
end

(loss::TpCrossEntropy)(logits::AbstractArray, targets::AbstractArray) = forward!(loss, fresh_floats(logits, size(targets)), logits, targets)

function backward!(loss::TpCrossEntropy, grad_logits::AbstractArray, grad_losses::AbstractArray, logits::AbstractArray, targets::AbstractArray,
                   saved::AbstractArray)
    check(Raw.mdp_tp_cross_entropy_bwd(loss.comm, raw_cross_entropy(loss), borrow(lying(logits), false),
                                       borrow(from_zero(targets, "targets"), false), borrow(lying(saved), false),
                                       borrow(lying(grad_losses), false), borrow_written(grad_logits, "grad_logits"), stream_of(grad_logits)))
    return grad_logits
end
