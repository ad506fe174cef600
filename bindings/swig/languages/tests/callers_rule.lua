-- SPDX-License-Identifier: Apache-2.0
-- On one rank or two: AdamW that is written here gives the library's bits; a step that fails, or is dropped, on the last rank fails on all; what
-- a rule keeps of whole parameters in bytes.
local megadp = require("megadp")

local comm = megadp.Comm.create(megadp.CommOptions())
local LENGTHS, STEPS = {301, 200}, 10
local LAST = comm:rank() == comm:size() - 1

local function fails(name, words, call)
  local good, problem = pcall(call)
  assert(not good and problem.name == name and problem.text:find(words, 1, true), "expected " .. name .. ", not " .. tostring(problem))
end

-- The second parameter is BF16.
local function buffer_of()
  local params, options = megadp.Params(), megadp.BufferOptions()
  for p, length in ipairs(LENGTHS) do
    local param = megadp.Param("p" .. p)
    param:add_dimension(length)
    if p == 2 then param.dtype = megadp.DType_BF16 end
    params:add(param)
  end
  options.bucket_elements = 100
  local buffer = megadp.Buffer.create(comm, params, options)
  for p, length in ipairs(LENGTHS) do
    local start = {}
    for i = 1, length do start[i] = (i % 19 - 9) / 8 end
    buffer:write(p - 1, start)
  end
  return buffer
end

local function optimizer_of(buffer, rule)
  local options = megadp.OptimizerOptions()
  options.rule, options.lr, options.weight_decay, options.max_grad_norm = rule, 0.03125, 0.125, 0.5
  if rule == megadp.Rule_CALLER then
    options:add_state("exp_avg")
    options:add_state("exp_avg_sq")
  end
  return megadp.Optimizer.create(buffer, options)
end

local function put(buffer, step)
  for p = #LENGTHS, 1, -1 do
    local grad = {}
    for i = 1, LENGTHS[p] do grad[i] = ((i * (7 + p) + step * 5 + comm:rank() * 3) % 23 - 11) / 16 end
    buffer:put(p - 1, grad)
  end
end

-- Numbers are float64; one operation on float32s, rounded, is float32's own.
local function f32(x)
  return (string.unpack("f", string.pack("f", x)))
end

-- In the library's order of operations.
local function adamw(piece)
  local power1, power2 = 1, 1
  for _ = 1, piece.step do power1, power2 = power1 * piece.beta1, power2 * piece.beta2 end
  local beta1, rest1, beta2, rest2 = f32(piece.beta1), f32(1 - piece.beta1), f32(piece.beta2), f32(1 - piece.beta2)
  local decay, eps = f32(1 - piece.lr * piece.weight_decay), f32(piece.eps)
  local step_size, root = f32(piece.lr / (1 - power1)), f32(math.sqrt(1 - power2))
  local master, grad, m, v = piece:master():values(), piece:grad():values(), piece:state(0):values(), piece:state(1):values()
  assert(#master == piece.count and #grad == piece.count and piece:states() == 2)
  for i, g in ipairs(grad) do
    m[i] = f32(f32(beta1 * m[i]) + f32(rest1 * g))
    v[i] = f32(f32(beta2 * v[i]) + f32(f32(rest2 * g) * g))
    local moved = f32(f32(step_size * m[i]) / f32(f32(f32(math.sqrt(v[i])) / root) + eps))
    master[i] = f32(f32(master[i] * decay) - moved)
  end
  piece:master():set_values(master)
  piece:state(0):set_values(m)
  piece:state(1):set_values(v)
end

local function update(step)
  local piece, last = step:next(), nil
  while piece do
    adamw(piece)
    piece, last = step:next(), piece
  end
  fails("MDP_E_STATE", "a piece of a Step", function() last:master():get(0) end)
  return step:finish()
end

local function beside()
  local wanted, buffer = buffer_of(), buffer_of()
  local own, callers = optimizer_of(wanted, megadp.Rule_ADAMW), optimizer_of(buffer, megadp.Rule_CALLER)
  for at = 1, STEPS do
    put(wanted, at)
    put(buffer, at)
    local expected, report = own:step(megadp.StepOptions()), update(callers:begin_step(megadp.StepOptions()))
    assert(report.step == at and report.grad_norm == expected.grad_norm)
    for p = 0, #LENGTHS - 1 do
      for i, value in ipairs(wanted:read(p)) do assert(buffer:read(p)[i] == value, "parameter " .. p .. " in step " .. at) end
    end
  end
end

local function failures()
  local buffer = buffer_of()
  local optimizer = optimizer_of(buffer, megadp.Rule_CALLER)
  for _, way in ipairs({"fail", "drop"}) do
    put(buffer, 1)
    local step = optimizer:begin_step(megadp.StepOptions())
    if not LAST then
      fails("MDP_E_ABORTED", "masters and state may have changed", function() update(step) end)
    elseif way == "fail" then
      step:fail()
      fails("MDP_E_STATE", "this Step is over", function() step:next() end)
    else
      step = nil
      collectgarbage()
    end
    fails("MDP_E_STATE", "are not whole", function() optimizer:begin_step(megadp.StepOptions()) end)
    optimizer:set_steps(0)
    put(buffer, 2)
    assert(update(optimizer:begin_step(megadp.StepOptions())).step == 1)
  end
end

-- Of the first parameter a number is kept, of the second nothing; only the first's owner has it.
local function whole()
  local params = megadp.Params()
  for p, length in ipairs(LENGTHS) do
    local param = megadp.Param("p" .. p)
    param:add_dimension(length)
    param.sharding = megadp.Sharding_WHOLE
    params:add(param)
  end
  local buffer = megadp.Buffer.create(comm, params, megadp.BufferOptions())
  local function keeping(...)
    local options, counts = megadp.OptimizerOptions(), megadp.Counts()
    for _, count in ipairs({...}) do counts:add(count) end
    options.rule = megadp.Rule_CALLER
    options:add_param_state("seen", counts)
    return megadp.Optimizer.create(buffer, options)
  end
  fails("MDP_E_INVALID", "the bytes of 'seen' must be 2 numbers from 0 on", function() keeping(8) end)
  fails("MDP_E_INVALID", "the bytes of 'seen' must be 2 numbers from 0 on", function() keeping(8, -1) end)
  local optimizer, owned = keeping(8, 0), 0
  for at = 1, 3 do
    put(buffer, at)
    local step = optimizer:begin_step(megadp.StepOptions())
    local piece = step:next()
    while piece do
      assert(piece.param_begin == 0 and piece.count == LENGTHS[piece.param + 1] and piece:param_states() == 1)
      assert(not pcall(function() piece.count = 1000000 end)) -- bounds the views
      local seen = piece:param_state(0)
      assert(seen:size() == (piece.param == 0 and 8 or 0))
      if piece.param == 0 then
        local bytes = {}
        for i, byte in ipairs(seen:values()) do bytes[i] = string.char(math.tointeger(byte)) end
        local sum = string.unpack("<d", table.concat(bytes))
        assert(sum == at * (at - 1) / 2)
        seen:set_values({string.byte(string.pack("<d", sum + at), 1, 8)})
        fails("MDP_E_INVALID", "a byte must be a whole number from 0 to 255, not 256", function() seen:set(7, 256) end)
        fails("MDP_E_INVALID", "not 0.5", function() seen:set_values({0, 0, 0, 0, 0, 0, 0, 0.5}) end)
        fails("MDP_E_INVALID", "not 1", function() piece:param_state(1) end)
        owned = 8
      end
      piece = step:next()
    end
    step:finish()
  end
  local kept = optimizer:state(0, "seen")
  assert(kept:size() == owned and optimizer:state(1, "seen"):size() == 0)
  assert(owned == 0 or kept:get(7) == 64 and kept:get(6) == 24) -- the first bytes of 6.0
end

beside()
failures()
whole()
comm:barrier()
print("the library's bits")
