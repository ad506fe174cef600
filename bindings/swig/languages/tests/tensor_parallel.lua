-- SPDX-License-Identifier: Apache-2.0
-- With two ranks, on lists: a column-parallel layer and a row-parallel one on what it gives, forward and backward, as the unsplit pair; operators;
-- a vocabulary that is cut; halos; and what is refused. Numbers are whole, so that sums of products are exact however they are cut.
local megadp = require("megadp")

local comm = megadp.Comm.create(megadp.CommOptions())
local rank = comm:rank()

-- Lists are row-major.
local function matrix(rows, columns, at)
  local made = {}
  for row = 0, rows - 1 do
    for column = 0, columns - 1 do made[#made + 1] = at(row, column) end
  end
  return made
end

local function small(rows, columns, salt)
  return matrix(rows, columns, function(row, column) return (7 * row + 3 * column + 5 * salt) % 9 - 4 end)
end

local function turned(list, columns)
  return matrix(columns, #list // columns, function(row, column) return list[column * columns + row + 1] end)
end

-- `inner` is the length of what is summed over.
local function times(left, right, inner)
  local columns = #right // inner
  return matrix(#left // inner, columns, function(row, column)
    local sum = 0
    for k = 0, inner - 1 do sum = sum + left[row * inner + k + 1] * right[k * columns + column + 1] end
    return sum
  end)
end

local function half(list)
  return table.move(list, rank * #list // 2 + 1, (rank + 1) * #list // 2, 1, {})
end

local function columns_of(list, columns)
  return turned(half(turned(list, columns)), #list // columns)
end

local function same(found, expected, what)
  assert(#found == #expected, what .. ": " .. #found .. " numbers; expected " .. #expected)
  for i = 1, #expected do assert(found[i] == expected[i], what .. ": number " .. i .. " is " .. found[i] .. "; expected " .. expected[i]) end
end

local function fails(name, words, call)
  local good, problem = pcall(call)
  assert(not good and problem.name == name and problem.text:find(words, 1, true), "expected " .. name .. ", not " .. tostring(problem))
end

local function options(split, inputs, outputs, sequence)
  local made = megadp.TpLinearOptions()
  made.split, made.in_features, made.out_features, made.sequence = split, inputs, outputs, sequence
  return made
end

local function pair(sequence)
  local w1, b1, w2, x, dy = small(8, 5, 1), small(1, 8, 2), small(4, 8, 3), small(6, 5, 4), small(6, 4, 5)
  local h = times(x, turned(w1, 5), 5)
  for i = 1, #h do h[i] = h[i] + b1[(i - 1) % 8 + 1] end
  local dh = times(dy, w2, 4)
  local function own(list) return sequence and half(list) or list end
  local up, down = options(megadp.TpSplit_COLUMN, 5, 8, sequence), options(megadp.TpSplit_ROW, 8, 4, sequence)
  up.bias = true
  down.grad = megadp.TpGrad_REPLICATED
  local first, second = megadp.TpLinear.create(comm, up), megadp.TpLinear.create(comm, down)
  local found = first:forward(own(x), half(w1), half(b1))
  same(found, columns_of(h, 8), "hidden")
  same(second:forward(found, columns_of(w2, 8), {}), own(times(h, turned(w2, 8), 8)), "output")
  local gradients = second:backward(found, columns_of(w2, 8), own(dy))
  same(gradients:input(), columns_of(dh, 8), "gradient of hidden")
  same(gradients:weight(), columns_of(times(turned(dy, 4), h, 6), 8), "gradient of the second weight")
  same(gradients:bias(), {}, "gradient of no bias")
  gradients = first:backward(own(x), half(w1), gradients:input())
  same(gradients:input(), own(times(dh, w1, 8)), "gradient of the input")
  same(gradients:weight(), half(times(turned(dh, 8), x, 6)), "gradient of the first weight")
  same(gradients:bias(), half(times({1, 1, 1, 1, 1, 1}, dh, 6)), "gradient of the first bias")
  fails("MDP_E_INVALID", "weight has shape", function() first:forward(own(x), {1, 2, 3}, half(b1)) end)
  fails("MDP_E_INVALID", "rows have 5", function() first:forward({1, 2, 3}, half(w1), half(b1)) end)
  first:close()
  fails("MDP_E_STATE", "closed", function() first:forward(own(x), half(w1), half(b1)) end)
end

local function regions()
  local whole, other = small(4, 3, 1), small(4, 3, 2)
  local mine = rank == 0 and whole or other
  local sum = {}
  for i = 1, #whole do sum[i] = whole[i] + other[i] end
  local region = megadp.TpRegionOptions()
  region.region, region.dim = megadp.TpRegion_REDUCE_SCATTER, 0
  region:add_dimension(4)
  region:add_dimension(3)
  same(megadp.TensorParallel.region_forward(comm, region, mine), half(sum), "summed and scattered")
  same(megadp.TensorParallel.region_backward(comm, region, half(other)), other, "its gradient")
  region.dim = 2
  fails("MDP_E_INVALID", "config.dim", function() megadp.TensorParallel.region_forward(comm, region, mine) end)
end

local function vocabulary()
  local table_, dy, ids = small(6, 3, 1), small(4, 3, 2), {5, 0, 2, 5}
  local options = megadp.TpEmbeddingOptions()
  options.rows, options.features, options.grad = 6, 3, megadp.TpGrad_REPLICATED
  local tp = megadp.TensorParallel
  same(tp.embedding_forward(comm, options, ids, half(table_)), matrix(4, 3, function(row, column)
    return table_[ids[row + 1] * 3 + column + 1]
  end), "rows of the table")
  same(tp.embedding_backward(comm, options, ids, dy), half(matrix(6, 3, function(row, column)
    local sum = 0
    for i, id in ipairs(ids) do sum = sum + (id == row and dy[(i - 1) * 3 + column + 1] or 0) end
    return sum
  end)), "gradient of the table")
  fails("MDP_E_INVALID", "it must be whole", function() tp.embedding_forward(comm, options, {1, 0.5}, half(table_)) end)

  -- Classes that are all as likely, of which the last column is padding; target -1 is ignored.
  local loss = megadp.TpCrossEntropyOptions()
  loss.classes, loss.ignore_index = 3, -1
  local logits, targets = matrix(3, 2, function(_, column) return rank == 1 and column == 1 and 50 or 2 end), {2, -1, 0}
  local losses = tp.cross_entropy_forward(comm, loss, logits, targets)
  local function rounded(list) return matrix(1, #list, function(_, i) return math.floor(list[i + 1] * 1e4 + 0.5) end) end
  same(rounded(losses:values()), rounded({math.log(3), 0, math.log(3)}), "losses")
  local grads = rank == 0 and {1, 1, 0, 0, -6, 3} or {-2, 0, 0, 0, 3, 0}
  same(rounded(tp.cross_entropy_backward(comm, loss, logits, targets, losses, {3, 6, 9})), rounded(grads), "gradient of the logits")
  fails("MDP_E_INVALID", "logits has shape", function() tp.cross_entropy_forward(comm, loss, {1, 2}, targets) end)

  local cut = megadp.GridOptions()
  cut.tp = 2
  local grid = megadp.Grid.create(comm, cut)
  assert(grid:seed(5, megadp.Random_TENSOR) == 5 + 2718 + rank and grid:seed(5, megadp.Random_REPLICATED) == 5, "seeds")
end

-- A ring of three elements each, with a halo of one before and two behind.
local function halos()
  local options = megadp.HaloOptions()
  options.arrays = 1
  options:add_dimension(2, 3, 1, 2, megadp.Edge_PERIODIC)
  local halo = megadp.Halo.create(comm, options)
  local expected = rank == 0 and {6, 1, 2, 3, 4, 5} or {3, 4, 5, 6, 1, 2}
  same(halo:exchange({0, expected[2], expected[3], expected[4], 0, 0}, false), expected, "halo")
  local gradient = rank == 0 and {1, 2, 3, 4, 5, 6} or {10, 20, 30, 40, 50, 60}
  same(halo:exchange(gradient, true), rank == 0 and {0, 52, 63, 14, 0, 0} or {0, 25, 36, 41, 0, 0}, "gradients of a halo")
  local array = halo:array(0)
  array:set_values({0, expected[2], expected[3], expected[4], 0, 0})
  halo:start(0, false)
  halo:finish()
  same(array:values(), expected, "an array of the halo's")
  assert(halo:place(0) == rank and halo:part_begin(0) == 3 * rank and halo:whole_size(0) == 6, "places")
  fails("MDP_E_INVALID", "fields[0] has shape [3]", function() halo:exchange({1, 2, 3}, false) end)
  halo:close()
  local conv = megadp.ConvOptions()
  conv.kernel = 3
  conv:add_part(4)
  conv:add_part(3)
  local part = megadp.Halo.conv_split(conv, 1)
  assert(part.low == 0 and part.high == 2 and part.output_begin == 4 and part.output_size == 1, "a convolution that is cut")
end

pair(false)
pair(true)
halos()
regions()
vocabulary()
comm:close()
print("as unsplit")
