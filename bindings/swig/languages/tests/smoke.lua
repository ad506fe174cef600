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
buffer:wait_all()

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
comm:barrier() -- a rank whose program ends must have been needed for the last time
local view = buffer:param(1)
buffer:close()
comm:close()
assert(fails("closed", buffer.read, buffer, 0):find("is closed", 1, true))
view:set(0, 5.5)
collectgarbage()
print("view", view:get(0))
