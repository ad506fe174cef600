-- SPDX-License-Identifier: Apache-2.0
-- What test_scripting.py runs with 1 and 2 ranks: a line, fitted; the failures; views. Every rank prints the same.
local megadp = require "megadp"

local function fails(what, call, ...)
  local ok, failure = pcall(call, ...)
  assert(not ok, what .. " does not fail")
  print(what, failure.name, failure.param, failure.rank)
  return tostring(failure)
end

local comm = megadp.Comm.create(megadp.CommOptions())
local rank, ranks = comm:rank(), comm:size()
local params = megadp.Params()
for _, name in ipairs { "w", "b" } do
  local param = megadp.Param(name)
  param:add_dimension(1)
  params:add(param)
end
local buffer = megadp.Buffer.create(comm, params, megadp.BufferOptions())
local options = megadp.OptimizerOptions()
options.lr = 0.1
local optimizer = megadp.Optimizer.create(buffer, options)
for _ = 1, 40 do
  local w, b = buffer:read(0)[1], buffer:read(1)[1]
  local grad_w, grad_b = 0, 0
  for i = rank, 63, ranks do
    local x = i / 32 - 1
    local e = w * x + b - (2 * x - 1)
    grad_w, grad_b = grad_w + e * x / 32 * ranks, grad_b + e / 32 * ranks
  end
  buffer:put(1, { grad_b })
  buffer:put(0, { grad_w })
  optimizer:step(megadp.StepOptions())
end
print(string.format("fit %.2f %.2f", buffer:read(0)[1], buffer:read(1)[1]))
print(string.format("sum %d", comm:all_reduce({ rank + 1 }, megadp.Op_SUM)[1] - ranks * (ranks + 1) / 2))

buffer:put(1, { 1 })
if rank < ranks - 1 then buffer:put(0, { 1 }) end
assert(fails("missing", buffer.sync, buffer):find("'w'", 1, true))
fails("bad", buffer.put, buffer, 7, { 1 })
fails("shape", buffer.put, buffer, 1, { 1, 2 })
buffer:begin_microbatch(true)
buffer:put(1, { 1 })
buffer:put(0, { 1 })
local request = buffer:start_sync()
request:wait()
local norms = { buffer:grad_norm(), buffer:grad_norm_of({ 0 }) }
buffer:scale_grads_of(0.5, { 1 })
norms[3], norms[4] = buffer:grad_norm_of({ 1 }), buffer:grad_norm_of({})
buffer:scale_grads(2)
norms[5] = buffer:grad_norm()
buffer:grad(0):set(0, 0)
buffer:grads_changed()
norms[6] = buffer:grad_norm_of({ 0, 1 })
print(string.format("norm %.2f %.2f %.2f %.2f %.2f %.2f", table.unpack(norms)))
fails("listed", buffer.grad_norm_of, buffer, { 7 })
print(string.format("steps %d %d", optimizer:step(megadp.StepOptions()).step, optimizer:steps(1)))
optimizer:set_steps(100)
local before, counts = optimizer:steps(1), megadp.Counts()
counts:add(9)
counts:add(7)
optimizer:set_steps_of(9, counts)
print(string.format("set %d %d %s", before, optimizer:steps(1), optimizer:info():sub(10, 14)))
buffer:wait_all()
local saved, directory, about = buffer:read(0)[1], os.getenv("MEGADP_CHECKPOINTS"), megadp.CheckpointOptions()
about.shared_data, about.rank_data, about.keep = "all", string.format("r%d", rank), 1
megadp.Checkpoint.save(directory, buffer, optimizer, about)
buffer:write(0, { 99 })
optimizer:set_steps(1)
megadp.Checkpoint.load(directory, buffer, optimizer, megadp.CheckpointOptions())
local same = buffer:read(0)[1] == saved and 1 or 0
local texts = megadp.Checkpoint.data(directory, -1) .. " " .. megadp.Checkpoint.data(directory, 0)
print(string.format("restored %d %d %s", same, optimizer:steps(1), texts))
assert(megadp.Checkpoint.info(directory):find("checkpoint-000001", 1, true))
fails("absent", megadp.Checkpoint.info, directory .. "/absent")

-- Two buffers, one of them without an optimizer, and an array of this program's own in one checkpoint.
local parts, late, mean = megadp.CheckpointParts(), megadp.Params(), megadp.Param("mean")
mean:add_dimension(2)
late:add(megadp.Param("late"))
local second, memory = megadp.Buffer.create(comm, late, megadp.BufferOptions()), parts:add_tensor(mean)
parts:add(buffer, optimizer)
parts:add_buffer(second)
memory:set_values({ 3, 4 })
second:write(0, { 6 })
parts:save(directory .. "/parts", about)
parts:start_save(directory .. "/parts", about):wait()
memory:set_values({ 0, 0 })
second:write(0, { 0 })
buffer:write(0, { 99 })
parts:load(directory .. "/parts", megadp.CheckpointOptions())
print(string.format("parts %d %d %d", buffer:read(0)[1] == saved and 1 or 0, memory:get(1), second:read(0)[1]))
mean:add_dimension(-1)
fails("sized", parts.add_tensor, parts, mean)

local reversed = comm:split(0, -rank)
local last = reversed:world_rank(0) - (ranks - 1)
print(string.format("names %d %d %d %d", buffer:find("b"), buffer:find("w"), buffer:buckets(), last))
fails("unknown", buffer.find, buffer, "v")
buffer:write(0, { 7 + rank })
buffer:broadcast(0)
buffer:start_broadcast(ranks - 1):wait()
comm:start_barrier():wait()
options.lr = 0
local still = megadp.Optimizer.create(buffer, options)
buffer:put(1, { 1 })
buffer:put(0, { 1 })
still:step(megadp.StepOptions())
print(string.format("value %d", buffer:read(0)[1]))

-- Sent as bf16 and checked; and in which order gradients came.
local sent, pair = megadp.BufferOptions(), megadp.Params()
sent.wire_dtype, sent.error_feedback, sent.check_finite, sent.check_large = megadp.DType_BF16, true, true, true
for i, name in ipairs { "v", "u" } do
  local param = megadp.Param(name)
  param:add_dimension(1)
  param.use_order = 2 - i
  pair:add(param)
end
local checked, scaled = megadp.Buffer.create(comm, pair, sent), megadp.StepOptions()
checked:put(0, { 1 })
checked:put(1, { rank == ranks - 1 and math.huge or 1 })
assert(fails("numeric", checked.sync, checked):find("'u'", 1, true))
scaled.loss_scale = 2
local skipped = megadp.Optimizer.create(checked, megadp.OptimizerOptions()):step(scaled).skipped and 1 or 0
checked:put(0, { 1 })
checked:put(1, { 1 })
checked:sync()
local order = checked:use_order()
print(string.format("sent %d %d %d %d", skipped, order[1], order[2], checked:stats().large_gradients))

-- The same step with ZERO_1 and with ZERO_2, whose gradients are put and written where they go; and with several optimizer instances.
local function sharded_step(sharding, instances)
  local layers = megadp.Params()
  for _, name in ipairs({ "lower", "upper" }) do
    local param = megadp.Param(name)
    param:add_dimension(3)
    layers:add(param)
  end
  local sharded, zero2 = megadp.BufferOptions(), sharding == megadp.Sharding_ZERO_2
  sharded.sharding, sharded.bucket_elements, sharded.pool_buckets = sharding, 1, zero2 and 2 or 0
  local cut = megadp.GridOptions()
  cut.instances = instances
  local pooled = megadp.Buffer.create_on(megadp.Grid.create(comm, cut), layers, sharded)
  local adam = megadp.Optimizer.create(pooled, megadp.OptimizerOptions())
  local lent = pooled:acquire(1)
  assert(lent:first() and lent:size() == 3)
  lent:set_values({ 9, 9, 9 })
  if zero2 then
    fails("view", pooled.grad, pooled, 0)
    fails("lent", pooled.put, pooled, 1, { 1, 2, 3 })
  end
  pooled:release(1)
  if zero2 then
    fails("released", lent.get, lent, 0)
  end
  lent = pooled:acquire(1)
  lent:set_values({ 1 / 3 + rank, 2 / 3, 3 / 7 })
  pooled:ready(1)
  pooled:put(0, { 1 / 7, rank / 3, -1 / 9 })
  pooled:sync()
  local size = 0
  for i = 0, 1 do
    local owned = pooled:owned_grad(i)
    local values = owned:values()
    for k, value in ipairs(values) do
      values[k] = 2 * value
    end
    owned:set_values(values)
    size = size + owned:size()
  end
  size = comm:all_reduce({ size }, megadp.Op_SUM)[1] / instances
  pooled:grads_changed()
  local norm = pooled:grad_norm()
  adam:step(megadp.StepOptions())
  if zero2 then
    print(string.format("pooled %d %d", size, pooled:stats().spill_peak_bytes))
  end
  return table.concat({ norm, size, table.concat(pooled:read(0), " "), table.concat(pooled:read(1), " ") }, " ")
end
local one, two = sharded_step(megadp.Sharding_ZERO_1, 1), sharded_step(megadp.Sharding_ZERO_2, 1)
print("zero2", one == two and "same" or one .. " and " .. two)
local cut = sharded_step(megadp.Sharding_ZERO_1, ranks)
print("instances", one == cut and "same" or one .. " and " .. cut)
comm:barrier() -- a rank whose program ends must have been needed for the last time
local view = buffer:param(1)
buffer:close()
comm:close()
assert(fails("closed", buffer.read, buffer, 0):find("is closed", 1, true))
view:set(0, 5.5)
collectgarbage()
print("view", view:get(0))
