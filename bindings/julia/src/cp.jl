# SPDX-License-Identifier: Apache-2.0
# Context parallelism: attention over a sequence that is cut over ranks, where the attention of a block is a function of the caller's.

const CP_FORMS = Dict(:auto => Raw.MDP_CP_AUTO, :ring => Raw.MDP_CP_RING, :all_to_all => Raw.MDP_CP_ALL_TO_ALL)

"""
    CpAttention(f, comm; causal = false, form = :auto, bounds = nothing)
    CpAttention(comm; ...)
    attention(q, k, v) -> out

Attention over a sequence that is cut over the ranks of `comm`, with its gradients for ADs that go by ChainRules. Arrays are (head_dim, heads,
positions, batch), this rank's positions, which [`cp_part`](@ref) tells; of any strides; Float32, BFloat16 or Float16, all of one type. `k` and `v` may
have fewer heads: head h of `q` uses their head `cld(h, heads ÷ kv_heads)`.

- `f(block)` computes the attention of some queries with some keys, forward or backward; without it [`MegaDP.plain_attention`](@ref) does.
- `causal`: a query sees keys up to its own position; the sequence is then cut into two chunks a rank.
- `form` is what moves: `:ring` (`k` and `v`, while a block is computed), `:all_to_all` (each rank gets the whole sequence of some heads), or `:auto`,
  what sends less.
- `bounds` are those of packed sequences in the whole: 0, and where each ends.

A block is a named tuple. `q`, `k` and `v` are views, and `q_range`, `k_range` (of positions) and `heads` (of `q`) where they are in the whole.
With `causal` a query sees the keys of the block up to its own position, and both begin at the same; otherwise all. `q_bounds` and `k_bounds` are
`nothing`, or of packed sequences where they begin and end in `q` and in `k`, as `bounds`: a query sees the keys of its own one.
Forward: `grad_out` is `nothing`; `out` and `lse`, the natural logarithm of the sum of the exponentials of the scores, (heads, positions, batch), -Inf
without a key, are to be written, both Float32. Backward: `out`, `lse` and `grad_out` are given, of all keys, and `grad_q`, `grad_k` and `grad_v` are to be
written, Float32, this block's part. They are for the call: not to be kept. `f` may not use `comm`, nor let another task of its thread do so.

What `f` throws comes out on this rank, and `:ABORTED` on the others; the communicator is not lost by that. Collective over `comm`, in the order of its
other collectives; blocking, backward too; a Ctrl-C gets into `f`. Throws `MegaDPError`, on all ranks: `:INVALID` (sizes that do not divide), `:DESYNC`,
`:ABORTED`, and those of a lost communicator. [`MegaDP.forward!`](@ref) and [`MegaDP.backward!`](@ref) write into arrays that are there.
"""
struct CpAttention{F}
    f::F
    comm::Comm
    causal::Bool
    form::Symbol
    bounds::Union{Vector{Int64},Nothing}
end

function CpAttention(f, comm::Comm; causal = false, form = :auto, bounds = nothing)
    choose(CP_FORMS, "form", form)
    return CpAttention(f, comm, causal, form, bounds === nothing ? nothing : Int64[bounds...])
end
CpAttention(comm::Comm; keywords...) = CpAttention(plain_attention, comm; keywords...)

Base.show(io::IO, attention::CpAttention) = print(io, "CpAttention(:", attention.form, attention.causal ? ", causal)" : ")")

cp_flags(causal) = causal ? Raw.MDP_CP_CAUSAL : 0

"The configuration. It points to the attention's bounds."
function raw_attention(attention::CpAttention)
    bounds = attention.bounds
    return Raw.mdp_cp_config(; form = choose(CP_FORMS, "form", attention.form), bounds = bounds === nothing ? C_NULL : pointer(bounds),
                             bound_count = bounds === nothing ? 0 : length(bounds), flags = cp_flags(attention.causal))
end

"""
    cp_part(size, rank, sequence; causal = false) -> Vector{UnitRange{Int}}

The positions, from 1, that rank `rank` (from 0) of `size` has of a sequence, in the order of its part: one range, or with `causal` two, so that all
ranks have as much to compute. `x[:, reduce(vcat, ranges), :]` cuts an array. Local. Throws `MegaDPError`: `:INVALID` (a sequence that does not
divide, naming ones that would).
"""
function cp_part(size::Integer, rank::Integer, sequence::Integer; causal = false)
    found = zeros(Int64, 4)
    check(Raw.mdp_cp_part(Ref(Raw.mdp_cp_config(; flags = cp_flags(causal))), size, rank, sequence, found))
    return UnitRange{Int}[from+1:to for (from, to) in ((found[1], found[2]), (found[3], found[4])) if from < to]
end

"Calls the library with arrays that it reads, and ones that it writes, by name."
function attend(call, attention, read, written)
    attending = Attending(attention.f, nothing)
    given = map(array -> borrow(lying(array), false), read)
    wanted = map(borrow_written, Tuple(written), keys(written))
    status = GC.@preserve attending attention call(attention.comm, Ref(raw_attention(attention)),
                                                   @cfunction(attend_block, Int32, (Ptr{Cvoid}, Ptr{Raw.mdp_cp_block})),
                                                   pointer_from_objref(attending), given..., wanted..., stream_of(first(written)))
    attending.problem === nothing || throw(attending.problem)
    check(status, in_words_of_attention)
end

"A sentence of the library about an attention in Julia's words: it counts positions and bounds from 0, and has dimensions the other way round."
function in_words_of_attention(text)
    counted(k) = parse(Int, k) + 1
    rules = ("must be [batch, sequence, heads, head_dim]" => "must be (head_dim, heads, positions, batch)",
             "the attention function returned -1 for" => "the attention function has thrown, at",
             r"(?<=\bqueries from )\d+|(?<= and keys from )\d+|(?<=\bbounds\[)\d+(?=\])" => counted,
             "config.bound_count is" => "the length of bounds is", "config." => "", " has shape " => " has size ")
    return foldl(replace, rules; init = sizes_turned(text))
end

forward!(attention::CpAttention, out::AbstractArray, lse::AbstractArray, q::AbstractArray, k::AbstractArray, v::AbstractArray) =
    (attend(Raw.mdp_cp_attention_fwd, attention, (q, k, v), (out = out, lse = lse)); out)

backward!(attention::CpAttention, grad_q::AbstractArray, grad_k::AbstractArray, grad_v::AbstractArray, grad_out::AbstractArray, q::AbstractArray,
          k::AbstractArray, v::AbstractArray, out::AbstractArray, lse::AbstractArray) =
    attend(Raw.mdp_cp_attention_bwd, attention, (q, k, v, out, lse, grad_out), (grad_q = grad_q, grad_k = grad_k, grad_v = grad_v))

"What forward writes into: `out` and `lse`."
fresh_outputs(q) = (fresh(q), fresh_floats(q, size(q)[2:end]))

(attention::CpAttention)(q::AbstractArray, k::AbstractArray, v::AbstractArray) = forward!(attention, fresh_outputs(q)..., q, k, v)
