# SPDX-License-Identifier: Apache-2.0
# Spatial parallelism: arrays cut over a grid of ranks, with a halo of what the neighbours have; and how convolutions are cut.

const EDGES = Dict(:keep => Raw.MDP_EDGE_KEEP, :zero => Raw.MDP_EDGE_ZERO, :periodic => Raw.MDP_EDGE_PERIODIC, :reflect => Raw.MDP_EDGE_REFLECT)

"""
    Halo(comm; grid, size, low = 1, high = low, edges = :keep, faces = false, type = Float64, fields = 1, staggered = nothing, arrays = 0)

Exchanges the halos of arrays that are cut over a grid of ranks, `fields` of them at a time. `grid` to `edges` have a value for each dimension, or one
for all (`size` never); dimensions are Julia's, and arrays are as they are, of any strides.

- `grid` are the numbers of ranks, their product is the size of `comm`. The first dimension varies fastest with the rank, as it does in memory: rank
  `LinearIndices(grid)[place...] - 1` is at `place`, and neighbours along columns are neighbours by rank. (MPI's Cartesian communicators, and
  ImplicitGlobalGrid on them, let the last one vary fastest.)
- `size` is that of this rank's part without its halo; parts may differ. Fields are arrays of `low .+ size .+ high`, of elements of `type`
  (`:bf16`: `Core.BFloat16`).
- `edges` is what is beyond the whole array: `:keep` (what the caller puts there), `:zero`, `:periodic`, or `:reflect` (mirrored at the outermost
  element, which is not repeated).
- `staggered` has a tuple for each field: 1 along which it is longer by one element, as what lies on the faces of cells is. `[(1, 0), (0, 1), (0, 0)]`
  are velocities along both dimensions and a pressure. Fields are then arrays of `low .+ size .+ high .+ staggered[field]`.
- With `faces` edges and corners are left as they are: for star-shaped stencils.
- `arrays` is how many the library makes, shaped as the fields are in turn, see [`MegaDP.array`](@ref).

See [`exchange!`](@ref), [`start!`](@ref) and [`finish!`](@ref); `halo(part)` is for ADs; `Halo(comm; ...) do halo ... end` closes it. Collective over `comm`, with equal arguments but for `size`;
blocking. Throws `MegaDPError`: `:INVALID` (a grid not of the size of `comm`; parts that do not fit; a reflected halo as wide as the whole),
`:DESYNC`, `:MEMORY`, and those of a lost communicator.
"""
mutable struct Halo <: Handle
    slot::Slot
    comm::Comm
    part::Dims
    low::Dims
    high::Dims
    lent::Vector{Borrowed}     # what the library uses from start to finish
    uses::Threads.Atomic{Int}  # by this object and by arrays of the library's, whose memory goes with the halo
end
@handle Halo mdp_halo
destroy(halo::Halo, pointer::UInt) = drop_use(halo.uses, pointer)
drop_use(uses, pointer) = Threads.atomic_sub!(uses, 1) == 1 && Raw.mdp_halo_destroy(Ptr{Raw.mdp_halo}(pointer))

function Halo(comm::Comm; grid, size, low = 1, high = low, edges = :keep, faces = false, type = Float64,
              fields = 1, staggered = nothing, arrays = 0)
    n = length(size)
    each(value::Union{Integer,Symbol}, _) = ntuple(_ -> value, n)
    each(values, argument) = length(values) == n ? Tuple(values) :
                             throw(invalid("$argument has $(length(values)) numbers; size has $n"))
    flip(values) = Int64[reverse(values)...]
    part, before, behind = Dims(size), Dims(each(low, "low")), Dims(each(high, "high"))
    lists = map(flip, (each(grid, "grid"), part, before, behind))
    codes = UInt32[choose(EDGES, "edges", edge) for edge in reverse(each(edges, "edges"))]
    longer = staggered === nothing ? Int64[] : stagger(staggered, fields, n)
    out = Ref{Ptr{Raw.mdp_halo}}(C_NULL)
    GC.@preserve lists codes longer begin
        config = Ref(Raw.mdp_halo_config(; dtype = dtype_of(type), ndim = n, fields = fields, grid = pointer(lists[1]),
                                         shape = pointer(lists[2]), low = pointer(lists[3]), high = pointer(lists[4]),
                                         edges = pointer(codes), flags = faces ? Raw.MDP_HALO_FACES : 0, arrays = arrays,
                                         staggered = isempty(longer) ? C_NULL : pointer(longer)))
        check_halo(Raw.mdp_halo_create(comm, config, out), n)
    end
    return finalizer(close, Halo(Slot(UInt(out[])), comm, part, before, behind, Borrowed[], Threads.Atomic{Int}(1)))
end

function stagger(staggered, fields, n)
    length(staggered) == fields && all(field -> length(field) == n && all(in((0, 1)), field), staggered) ||
        throw(invalid("staggered is $staggered; it must have $n numbers, 0 or 1, for each of $fields fields"))
    return Int64[number for field in staggered for number in reverse(Tuple(field))]
end

"""
A sentence of the library about a halo of `n` dimensions in the caller's words: the library has the dimensions the other way round, counts them, fields
and arrays from 0, and has C's names for arguments.
"""
function in_callers_words(text, n)
    other_way(d) = n - parse(Int, d)
    counted(k) = parse(Int, k) + 1
    rules = (r"(?<=dimension )\d+" => other_way, r"(?<=grid\[|shape\[|low\[|high\[|strides\[)\d+" => other_way,
             r"(?<=fields\[|parts\[)\d+" => counted, r"^index is \d+" => found -> "i is $(counted(found[10:end]))",
             r"(?<=edges )(?:(?:keep|zero|periodic|reflect)\b ?)+(?=,)" => edges -> size_text(reverse(":" .* split(edges))),
             "config.shape" => "size", "config." => "", " has shape " => " has size ")
    return foldl(replace, rules; init = sizes_turned(text))
end

"`check` of a call with a halo of `n` dimensions."
check_halo(status, n) = check(status, text -> in_callers_words(text, n))

Halo(body::Base.Callable, comm::Comm; keywords...) = closing(body, Halo(comm; keywords...))

"""
    start!(halo, fields...; backward = false)

Sends off what neighbours need of `fields`, padded arrays: part and halo. Until [`finish!`](@ref) only the inside may be read, what needs no halo; the
arrays are lent, and kept. Each halo becomes what its owners have. With `backward`, the adjoint: it is added to where it came from, in
the order of ranks, and becomes 0; kept edges stay. Collective, but waits for neighbours alone, two exchanges behind. Throws `MegaDPError`:
`:INVALID`, `:STATE` (an exchange is under way), and those of a lost communicator.
"""
function start!(halo::Halo, fields::AbstractArray...; backward = false)
    lent = Borrowed[borrow_written(field, "field $number") for (number, field) in enumerate(fields)]
    tensors = Raw.mdp_tensor[one.tensor for one in lent]
    stream = isempty(fields) ? C_NULL : stream_of(first(fields))
    earlier = halo.lent
    halo.lent = [earlier; lent]  # before the library has them: an interrupt may come as soon as it has, or before
    try
        check_halo(Raw.mdp_halo_start(halo, tensors, length(tensors), backward ? Raw.MDP_HALO_BACKWARD : 0, stream), length(halo.part))
    catch problem
        problem isa MegaDPError && (halo.lent = earlier)  # refused; after anything else the library may have them
        rethrow()
    end
    halo.lent = lent
    return nothing
end

"""
    finish!(halo)

Waits for the neighbours, and brings what they have sent to its place. Collective, as [`start!`](@ref). Throws `MegaDPError`: `:STATE` (nothing was
started), `:DESYNC` (a neighbour went the other way), and those of a lost communicator.
"""
function finish!(halo::Halo)
    stream = isempty(halo.lent) ? C_NULL : stream_of(first(halo.lent).owner)
    check(Raw.mdp_halo_finish(halo, stream))
    halo.lent = Borrowed[]
    return nothing
end

"""
    exchange!(halo, fields...)

[`start!`](@ref) and [`finish!`](@ref).
"""
exchange!(halo::Halo, fields::AbstractArray...) = (start!(halo, fields...); finish!(halo))

"""
    MegaDP.backward!(halo, fields...)

The adjoint of [`exchange!`](@ref), on gradients of padded arrays: what is in the halos is added to where it came from.
"""
backward!(halo::Halo, fields::AbstractArray...) = (start!(halo, fields...; backward = true); finish!(halo))

"""
    update_halo!(fields...; halo)

[`exchange!`](@ref), by the name and in the form of stencil codes such as those on ImplicitGlobalGrid: with the defaults of a [`Halo`](@ref) the
outermost cells on each side become the neighbours', and stay as they are at the edges of the whole array. Of a staggered field the faces between
two parts, which both compute there, become those of the part behind them.

ImplicitGlobalGrid sends columns with their ends, also where these are beyond the whole array along another dimension; here such cells are kept, next to
neighbours too. So codes that set boundary values before the exchange (`T[:, 1] .= T[:, 2]`, with `grid = (n, 1)`) set them after it. Or they take a dimension
along which nothing is cut as whole, `Halo(comm; grid = (n, 1), size = (nx - 2, ny), low = (1, 0))`: then whole columns are sent.
"""
update_halo!(fields::AbstractArray...; halo::Halo) = exchange!(halo, fields...)

"""
    MegaDP.place(halo) -> (place, part, whole)

This rank's place in the grid, from 0; the indices, from 1, of its part in the whole array; and the size of that. Local.
"""
function place(halo::Halo)
    coords, begins, whole = ntuple(_ -> zeros(Int64, length(halo.part)), 3)
    check(Raw.mdp_halo_place(halo, coords, begins, whole))
    flip(values) = Tuple(Int.(reverse(values)))
    return (place = flip(coords), part = map((from, size) -> from+1:from+size, flip(begins), halo.part), whole = flip(whole))
end

"""
    MegaDP.array(halo, i = 1)

Padded array `i` of those that the library has made (`arrays`), zero at first. Much that neighbours on the node need of these they read there, so that
nothing is packed; [`finish!`](@ref) then waits until all have read. It keeps its memory, also after `close(halo)`. Local. Throws
`MegaDPError`: `:INVALID`.
"""
function array(halo::Halo, i::Integer = 1)
    tensor = Ref(Raw.mdp_tensor())
    GC.@preserve halo begin
        uses, pointer = halo.uses, live(halo)
        i > 0 || throw(invalid("i is $i; arrays are counted from 1"))
        check_halo(Raw.mdp_halo_array(halo, i - 1, tensor), length(halo.part))
        Threads.atomic_add!(uses, 1)
        return wrap(tensor[], false, _ -> drop_use(uses, pointer))
    end
end

"Of a padded array the part without its halo, as a view."
own(halo::Halo, padded) = view(padded, map((low, size) -> low+1:low+size, halo.low, halo.part)...)

function pad(halo::Halo, part)
    size(part) == halo.part || throw(invalid("the array has size $(size(part)); this rank's part has $(halo.part)"))
    padded = fill!(fresh(part, halo.low .+ halo.part .+ halo.high), 0)
    own(halo, padded) .= part
    return padded
end

"""
    halo(part) -> padded
    halo(parts...) -> (padded...,)

This rank's parts with their halos around them, in new arrays; 0 at edges that are kept. For ADs that go by ChainRules, which add the gradient of a
halo where it came from. As [`exchange!`](@ref).
"""
function (halo::Halo)(parts::AbstractArray...)
    padded = map(part -> pad(halo, part), parts)
    exchange!(halo, padded...)
    return length(padded) == 1 ? padded[1] : padded
end

"""
    conv_split(parts, part; kernel, stride = 1, dilation = 1, padding = 0)

How an input that is cut along one dimension into `parts` is convolved or pooled by the rank with number `part`, from 0; `padding` is a number, or one
before and one behind the whole input. Each output is computed by the rank that has the element at (output - 1) * stride + 1, by the last one
beyond. Gives a named tuple, with indices from 1: `low` and `high`, the widths of the halo, the same on all ranks; `output`, what this rank
computes of the `whole_output`; `first`, the element of the padded part at which its first output's window begins; and `inside`, which of its own
outputs need no halo. Local. Throws `MegaDPError`: `:INVALID` (a window longer than the padded input).
"""
function conv_split(parts, part::Integer; kernel::Integer, stride::Integer = 1, dilation::Integer = 1, padding = 0)
    before, behind = padding isa Integer ? (padding, padding) : padding
    config = Ref(Raw.mdp_conv_config(; kernel = kernel, stride = stride, dilation = dilation, padding_low = before, padding_high = behind))
    sizes, out = Int64[parts...], sized(Raw.mdp_conv_part)
    check_halo(Raw.mdp_conv_split(config, sizes, length(sizes), part, out), 1)
    found = named(out[])
    range(from, size) = from+1:from+size
    return (low = found.low, high = found.high, output = range(found.output_begin, found.output_size), first = found.first + 1,
            inside = range(found.inside_begin, found.inside_size), whole_output = found.whole_output)
end
