# SPDX-License-Identifier: Apache-2.0
# Heat in a plate, by explicit steps, on a grid of ranks: the plate is cut in both dimensions, and each rank has a part with a halo one cell wide. While
# halos are on their way, the inside is computed; then the rim. Prints a sum over all cells, which is the same for every number of ranks.
#
#     megadp run -n 4 -- julia --project=bindings/julia bindings/julia/examples/heat.jl [ROWS COLUMNS STEPS]
using MegaDP

const RATE = 0.2  # of what flows to a neighbour in a step; stable below 1/4

"The most square grid of so many ranks."
function grid_of(ranks)
    rows = maximum(filter(r -> r * r <= ranks && ranks % r == 0, 1:ranks))
    return (rows, ranks ÷ rows)
end

"Which of `total` rows or columns part `place` of `parts` has, counted from 0."
part_of(total, place, parts) = total*place÷parts+1:total*(place+1)÷parts

function compute!(next, now, rows, columns)
    @inbounds for c in columns, r in rows
        next[r, c] = now[r, c] + RATE * (now[r-1, c] + now[r+1, c] + now[r, c-1] + now[r, c+1] - 4 * now[r, c])
    end
end

"Next from now, whose halo comes meanwhile."
function step_heat!(next, now, halo)
    rows, columns = size(now) .- 1  # the part's last
    start!(halo, now)
    compute!(next, now, 3:rows-1, 3:columns-1)  # what needs no halo
    finish!(halo)
    compute!(next, now, 2:rows, 2)
    columns > 2 && compute!(next, now, 2:rows, columns)
    compute!(next, now, 2, 3:columns-1)
    rows > 2 && compute!(next, now, rows, 3:columns-1)
end

"The plate gathered, since a sum of the ranks' sums would depend on how it is cut: each has zeros where others have their parts."
function gathered(comm, inside, mine, whole)
    all = zeros(whole)
    all[mine...] = inside
    return allreduce!(comm, all, +)
end

function heat(comm, whole, steps)
    grid = grid_of(total_workers(comm))
    place = (local_rank(comm) % grid[1], local_rank(comm) ÷ grid[1])  # the first dimension varies fastest
    mine = map(part_of, whole, place, grid)
    Halo(comm; grid = grid, size = map(length, mine), faces = true, arrays = 2) do halo
        now, next = MegaDP.array(halo, 1), MegaDP.array(halo, 2)  # zero; what is beyond the plate stays so
        x, y = map((range, n) -> (2 .* range .- 1) ./ n .- 1, mine, whole)
        now[2:end-1, 2:end-1] = [a * a + b * b < 0.25 ? 100.0 : 10.0 for a in x, b in y]  # hot in the middle
        for _ in 1:steps
            step_heat!(next, now, halo)
            now, next = next, now
        end
        sum = foldl(+, vec(gathered(comm, now[2:end-1, 2:end-1], mine, whole)))
        local_rank(comm) == 0 && println(whole[1], " x ", whole[2], " cells, ", steps, " steps: sum ", sum)
    end
end

rows, columns, steps = isempty(ARGS) ? (96, 80, 200) : parse.(Int, ARGS)
Comm(comm -> heat(comm, (rows, columns), steps); backend = :host)
