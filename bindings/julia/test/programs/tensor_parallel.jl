# SPDX-License-Identifier: Apache-2.0
# Layers cut over two ranks against the whole layer, which each rank computes by itself; the operators against what they say. Numbers are small
# multiples of 1/4, so that products and sums are exact however they are cut.
include("rank.jl")
include(joinpath("..", "standins.jl"))
load_extensions(:Functors, :ChainRulesCore)
using LinearAlgebra

small(salt, sizes...) = Float32[((7i + 5salt) % 9 - 4) / 4 for i in LinearIndices(sizes)]
share(total, rank) = 1+rank*total÷2:(rank+1)*total÷2  # of two ranks
const IN, HIDDEN, OUT, BATCH, SEQUENCE = 6, 8, 4, 3, 4

# A whole layer on (features, batch, sequence), and its gradients.
flat(x) = reshape(x, size(x, 1), :)
whole(weight, bias, x) = reshape(weight * flat(x) .+ bias, :, size(x)[2:end]...)
whole_gradients(weight, x, dy) = (reshape(weight' * flat(dy), size(x)), flat(dy) * flat(x)', vec(sum(flat(dy); dims = 2)))

"The same array where its memory lies otherwise: turned, and in every second place of a larger one."
turned(array) = PermutedDimsArray(permutedims(array, ndims(array):-1:1), Tuple(ndims(array):-1:1))
function spread(array)
    wide = fill(eltype(array) <: Integer ? typemin(eltype(array)) : eltype(array)(NaN), 2 .* size(array))
    place = view(wide, map(n -> 1:2:2n, size(array))...)
    place .= array
    return place
end

"A column-parallel layer and a row-parallel one on what it gives, by the rules of the AD: everything as in the unsplit pair."
function pair(comm, sequence, grad, lay)
    rank = local_rank(comm)
    first_weight, first_bias, second_weight, second_bias = small(1, HIDDEN, IN), small(2, HIDDEN), small(3, OUT, HIDDEN), small(4, OUT)
    x, dy = small(5, IN, BATCH, SEQUENCE), small(6, OUT, BATCH, SEQUENCE)
    hidden = whole(first_weight, first_bias, x)
    y = whole(second_weight, second_bias, hidden)
    d_hidden, d_second_weight, d_second_bias = whole_gradients(second_weight, hidden, dy)
    dx, d_first_weight, d_first_bias = whole_gradients(first_weight, x, d_hidden)

    mine, part = share(HIDDEN, rank), sequence ? share(SEQUENCE, rank) : (1:SEQUENCE)
    first_layer = TpLinear(comm, :column, IN => HIDDEN; sequence = sequence)
    second_layer = TpLinear(comm, :row, HIDDEN => OUT; sequence = sequence, grad = grad)
    found_hidden, first_back = ChainRulesCore.rrule(first_layer, lay(x[:, :, part]), lay(first_weight[mine, :]), first_bias[mine])
    found, second_back = ChainRulesCore.rrule(second_layer, found_hidden, lay(second_weight[:, mine]), second_bias)
    # A part of the gradient on each rank, where that is what comes back.
    change = grad != :partial ? dy[:, :, part] : rank == 0 ? dy .- 1 : ones(Float32, size(dy))
    self, change, weight_change, bias_change = second_back(ChainRulesCore.Thunk(() -> Float64.(lay(change))))
    good = self isa ChainRulesCore.NoTangent && found_hidden == hidden[mine, :, :] && found == y[:, :, part] &&
           weight_change == d_second_weight[:, mine] && change == d_hidden[mine, :, :] &&
           bias_change == (sequence ? vec(sum(flat(dy[:, :, part]); dims = 2)) : d_second_bias)
    _, change, weight_change, bias_change = first_back(change)
    good &= weight_change == d_first_weight[mine, :] && bias_change == d_first_bias[mine] && change == dx[:, :, part]
    foreach(close, (first_layer, second_layer))
    return good
end

"Fused blocks of which each is cut by itself, whole outputs and inputs, no bias, a weight that is frozen."
function others(comm)
    rank = local_rank(comm)
    weight, x, dy = small(1, 12, IN), small(2, IN, 5), small(3, 12, 5)
    rows = vcat(share(8, rank), 8 .+ share(2, rank), 10 .+ share(2, rank))
    fused = TpLinear(comm, :column, IN => 12; bias = false, blocks = (8, 2, 2), gather_output = true, grad = :replicated)
    y, back = ChainRulesCore.rrule(fused, x, weight[rows, :])
    _, dx, dw = back(dy)
    good = y == weight * x && dx == weight' * dy && dw == (dy * x')[rows, :]
    stride_less = Diagonal(Float32.(1:IN))
    y, back = ChainRulesCore.rrule(fused, stride_less, weight[rows, :])
    good &= y == weight * stride_less && back(weight)[2] == weight' * weight
    narrow = TpLinear(comm, :row, IN => 12; bias = false, whole_input = true, grad = :replicated, check_replicated = true)
    columns = share(IN, rank)
    y, back = ChainRulesCore.rrule(narrow, x, weight[:, columns])
    _, dx, dw = back(ChainRulesCore.ZeroTangent())
    good &= y == weight * x && dx == zeros(IN, 5) && dw == zeros(12, length(columns))
    dx = zeros(Float32, IN, 5)
    MegaDP.backward!(narrow, dy, nothing; weight = weight[:, columns], grad_input = dx)
    sums = fill(1.0f0, 12, length(columns))
    MegaDP.backward!(narrow, dy, x; weight = weight[:, columns], grad_weight = sums, add = true)
    return good && dx == weight' * dy && sums == (dy * x')[:, columns] .+ 1
end

"Weights in a buffer, of which one bias is frozen: values from there, gradients to there."
function in_buffer(comm, grid, row_major)
    rank, mine = local_rank(comm), share(HIDDEN, local_rank(comm))
    weight, bias, x, dy = small(1, HIDDEN, IN), small(2, HIDDEN), small(3, IN, 5), small(4, HIDDEN, 5)
    buffer = Buffer(grid, [Param("weight", (HIDDEN ÷ 2, IN); placement = :sharded, shard_dim = 1),
                           Param("bias", (HIDDEN ÷ 2,); placement = :sharded, shard_dim = 1),
                           Param("still", (HIDDEN ÷ 2,); placement = :sharded, shard_dim = 1, frozen = true)]; row_major = row_major)
    write!(buffer, 1, weight[mine, :])
    write!(buffer, 2, bias[mine])
    layer = TpLinear(comm, :column, IN => HIDDEN; buffer = buffer, weight = "weight", bias = 2)
    y, back = ChainRulesCore.rrule(layer, x)
    tangents = back(dy[mine, :])
    good = y == (weight * x .+ bias)[mine, :] && length(tangents) == 2 && tangents[2] == weight' * dy
    sync!(buffer)
    good &= grad_view(buffer, 1) == (dy * x')[mine, :] && grad_view(buffer, 2) == vec(sum(dy; dims = 2))[mine]
    zero_grad!(buffer)
    half = TpLinear(comm, :column, IN => HIDDEN; buffer = buffer, weight = 1, bias = "still")
    y, back = ChainRulesCore.rrule(half, x, nothing, -bias[mine])
    tangents = back(dy[mine, :])
    skip!(buffer, "bias")
    sync!(buffer)
    return good && y == (weight * x .- bias)[mine, :] && tangents[3] isa ChainRulesCore.NoTangent &&
           tangents[4] == vec(sum(dy; dims = 2))[mine] && grad_view(buffer, 1) == (dy * x')[mine, :]
end

"What an operator gives and what comes back of it, by its rule."
function both(region, x, dy)
    y, back = ChainRulesCore.rrule(region, x)
    self, dx = back(dy)
    return y, dx
end

function regions(comm, lay)
    rank, all = local_rank(comm), [small(r, 2, 3, 5) for r in 1:2]  # what each rank has
    own, sums, parts = all[rank+1], all[1] .+ all[2], ([1, 2], [1:1, 2:3])
    part = parts[2][rank+1]
    region(name; keywords...) = TpRegion(comm, name; keywords...)
    good = both(region(:copy; grad = :partial), lay(all[1]), lay(own)) == (all[1], sums)
    good &= both(region(:copy; grad = :replicated), all[1], all[2]) == (all[1], all[2])
    good &= both(region(:reduce; grad = :replicated), lay(own), lay(all[1])) == (sums, all[1])
    good &= both(region(:scatter; dim = 2, parts = parts[1]), lay(all[1]), lay(all[2][:, part, :])) == (all[1][:, part, :], all[2])
    good &= both(region(:gather; dim = 2, parts = parts[1], grad = :partial), lay(all[1][:, part, :]), lay(own)) == (all[1], sums[:, part, :])
    good &= both(region(:gather; dim = 1, grad = :replicated), all[1][rank+1:rank+1, :, :], all[2]) == (all[1], all[2][rank+1:rank+1, :, :])
    good &= both(region(:reduce_scatter; dim = 2, parts = parts[1]), lay(own), lay(all[2][:, part, :])) == (sums[:, part, :], all[2])
    heads = rank + 1:rank + 1
    exchanged = both(region(:exchange; dim = 2, to_dim = 1, parts = parts[1]), lay(all[1][:, part, :]), lay(all[2][heads, :, :]))
    good &= exchanged == (all[1][heads, :, :], all[2][:, part, :])
    place = fill(NaN32, 2, 3, 5)
    MegaDP.forward!(region(:reduce; grad = :partial), place, own)
    return good && place == sums
end

include("tp_vocabulary.jl")

Comm() do comm
    for lay in (identity, turned, spread), (sequence, grad) in ((false, :replicated), (false, :partial), (true, :unset))
        report(comm, "pair", pair(comm, sequence, grad, lay))
    end
    report(comm, "others", others(comm))
    grid = Grid(comm; tp = 2)
    foreach(row_major -> report(comm, "buffer", in_buffer(Comm(grid, :tp), grid, row_major)), (false, true))
    foreach(lay -> report(comm, "regions", regions(comm, lay)), (identity, turned, spread))
    vocabulary(comm, grid)
    uneven = caught(() -> TpRegion(comm, :scatter; dim = 1)(ones(Float32, 3)))
    report(comm, "refused", [uneven.kind, occursin("2 ranks cannot share evenly", uneven.text)])
end
