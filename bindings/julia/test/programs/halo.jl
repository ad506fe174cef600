# SPDX-License-Identifier: Apache-2.0
# Halos between four ranks, two by two, against the whole array, which each rank has by itself; in arrays that lie in several ways.
include("rank.jl")
include(joinpath("..", "standins.jl"))
load_extensions(:Functors, :ChainRulesCore)

const SIZES, LOW, HIGH = ([3, 2], [2, 4]), (1, 2), (2, 1)  # of the parts along both dimensions
const WHOLE = map(sum, SIZES)
whole_field(salt) = Float64[100i + 10j + salt for i in 1:WHOLE[1], j in 1:WHOLE[2]]

"The indices in the whole array that a rank's padded part has along dimension `d`, with periodic edges."
function indices(d, at)
    from = sum(SIZES[d][1:at])
    return [mod1(i, WHOLE[d]) for i in from+1-LOW[d]:from+SIZES[d][at+1]+HIGH[d]]
end

turned(array) = PermutedDimsArray(permutedims(array), (2, 1))
spread(array) = (wide = fill(NaN, 2 .* size(array)); place = view(wide, map(n -> 1:2:2n, size(array))...); place .= array; place)

function forward(halo, at, lay)
    fields = map((1, 2)) do salt
        padded = fill(NaN, LOW .+ halo.part .+ HIGH)
        MegaDP.own(halo, padded) .= whole_field(salt)[MegaDP.place(halo).part...]
        lay(padded)
    end
    update_halo!(fields...; halo = halo)
    return all(fields[salt] == whole_field(salt)[indices(1, at[1]), indices(2, at[2])] for salt in 1:2)
end

"What all ranks' gradients of their padded parts are for the whole array. Rank r's are r + 1 everywhere: sums are exact."
function whole_gradient(salt)
    sums = zeros(WHOLE)
    for rank in 0:3, i in indices(1, rank % 2), j in indices(2, rank ÷ 2)
        sums[i, j] += salt * (rank + 1)
    end
    return sums
end

function backward(comm, halo, at, lay)
    mine = MegaDP.place(halo).part
    gradients = map(salt -> lay(fill(Float64(salt * (local_rank(comm) + 1)), LOW .+ halo.part .+ HIGH)), (1, 2))
    MegaDP.backward!(halo, gradients...)
    good = all(MegaDP.own(halo, gradients[salt]) == whole_gradient(salt)[mine...] && sum(gradients[salt]) == sum(whole_gradient(salt)[mine...])
               for salt in 1:2)
    # The rule, where the second output has no gradient.
    padded, back = ChainRulesCore.rrule(halo, (lay(whole_field(salt)[mine...]) for salt in 1:2)...)
    good &= padded[2] == whole_field(2)[indices(1, at[1]), indices(2, at[2])]
    change = ChainRulesCore.Thunk(() -> fill(Float32(local_rank(comm) + 1), size(padded[1])))
    self, first_grad, second_grad = back((change, ChainRulesCore.ZeroTangent()))
    good &= self isa ChainRulesCore.NoTangent && first_grad == whole_gradient(1)[mine...] && second_grad == zero(second_grad)
    good &= all(back(ChainRulesCore.NoTangent())[2] .== 0)
    return good
end

"Waves, pressure in cells and velocities on their faces, as in codes on ImplicitGlobalGrid: on four ranks what one array becomes, to the bit."
function waves(comm)
    n, rank = 5, local_rank(comm)
    fields(cells) = zeros(7, cells + 2), zeros(8, cells + 2), zeros(7, cells + 3)
    function steps(P, Vx, Vy, exchange)
        for _ in 1:20
            Vx[2:end-1, :] .-= 0.3 .* diff(P; dims = 1)
            Vy[:, 2:end-1] .-= 0.3 .* diff(P; dims = 2)
            exchange(P, Vx, Vy)
            P[2:end-1, 2:end-1] .-= 0.3 .* (diff(Vx; dims = 1)[2:end-1, 2:end-1] .+ diff(Vy; dims = 2)[2:end-1, 2:end-1])
            exchange(P, Vx, Vy)
        end
    end
    whole, mine = fields(4n), fields(n)
    start = [sin(3i + j^2) for i in 1:5, j in 1:4n]
    whole[1][2:end-1, 2:end-1] = start
    steps(whole..., (_...) -> nothing)
    Halo(comm; grid = (1, 4), size = (5, n), fields = 3, staggered = [(0, 0), (1, 0), (0, 1)]) do halo
        mine[1][2:end-1, 2:end-1] = start[MegaDP.place(halo).part...]
        update_halo!(mine...; halo = halo)
        steps(mine..., (fields...) -> update_halo!(fields...; halo = halo))
    end
    return all(field == all_of_it[:, rank*n+1:rank*n+size(field, 2)] for (field, all_of_it) in zip(mine, whole))
end

"Along a dimension that is not cut and is given whole there is no halo, so that the ends of columns are sent with them."
function whole_columns(comm)
    rank = local_rank(comm)
    field = fill(Float64(rank), 3, 4)
    Halo(halo -> update_halo!(field; halo = halo), comm; grid = (4, 1), size = (1, 4), low = (1, 0))
    return field == repeat(clamp.(rank-1:rank+1, 0, 3), 1, 4)
end

Comm() do comm
    at = (local_rank(comm) % 2, local_rank(comm) ÷ 2)  # the first dimension varies fastest
    Halo(comm; grid = (2, 2), size = (SIZES[1][at[1]+1], SIZES[2][at[2]+1]), low = LOW, high = HIGH, edges = :periodic, fields = 2) do halo
        report(comm, "place", MegaDP.place(halo).place == at && MegaDP.place(halo).whole == WHOLE)
        report(comm, "forward", all(lay -> forward(halo, at, lay), (identity, turned, spread)))
        report(comm, "backward", all(lay -> backward(comm, halo, at, lay), (identity, turned, spread)))
    end
    Halo(comm; grid = (4,), size = (2,)) do halo  # one field, by its rule
        padded, back = ChainRulesCore.rrule(halo, fill(local_rank(comm) + 1.0, 2))
        rank = local_rank(comm) + 1
        expected = [rank == 1 ? 0 : rank - 1, rank, rank, rank == 4 ? 0 : rank + 1]
        report(comm, "single", padded == expected && back(ones(4))[2] == [rank == 1 ? 1 : 2, rank == 4 ? 1 : 2])
    end
    report(comm, "waves", waves(comm))
    report(comm, "columns", whole_columns(comm))
    different = caught(() -> Halo(comm; grid = (4,), size = (2,), low = 1 + local_rank(comm)))
    report(comm, "different", different.kind)
    report(comm, "sentence", occursin("'f64, grid (4,), low (1,), high (1,), edges (:keep,)", different.text))
    # In the words of who wrote the arguments: the dimension that is cut unevenly, and orders.
    uneven = caught(() -> Halo(comm; grid = (2, 2, 1), size = (3, local_rank(comm) == 2 ? 5 : 4, 2)))
    report(comm, "uneven", occursin("size[2] is 5 on rank 2 and 4 on rank 3, which are at the same place along dimension 2", uneven.text))
    edges = caught(() -> Halo(comm; grid = (4, 1), size = (2, 3), edges = (:keep, local_rank(comm) == 3 ? :zero : :periodic), high = (1, 2), low = 0))
    report(comm, "edges", occursin("grid (4, 1), low (0, 0), high (1, 2), edges (:keep, :periodic)", edges.text) &&
                          occursin("edges (:keep, :zero)", edges.text))
end
