-- SPDX-License-Identifier: Apache-2.0
-- On one rank or two: each rule by itself and beside another one, as their formulas have it in float64; a checkpoint of two optimizers; a loss
-- scaler; and what is refused.
local megadp = require("megadp")

local comm = megadp.Comm.create(megadp.CommOptions())
local RATE, DECAY, STEPS = 0.125, 0.25, 6
local BETA1, BETA2, EPS, MOMENTUM = 0.5, 0.75, 1e-3, 0.75
local ADAM, SGD = {beta1 = BETA1, beta2 = BETA2, eps = EPS}, {}
local RULES = {
  {"ADAMW", ADAM, {"exp_avg", "exp_avg_sq"}}, {"ADAM", ADAM, {"exp_avg", "exp_avg_sq"}}, {"SGD", SGD, {}},
  {"SGD_MOMENTUM", {momentum = MOMENTUM}, {"momentum_buffer"}}, {"SGD_NESTEROV", {momentum = MOMENTUM}, {"momentum_buffer"}},
  {"LION", {beta1 = BETA1, beta2 = BETA2}, {"exp_avg"}}}

local function gradient(step)
  return math.sin(2 * step) + 0.25
end

-- A parameter that began as 1, and what the rule keeps of it, after all steps.
local function after(rule)
  local w, m, v = 1, 0, 0
  local decoupled, adam = rule == "ADAMW" or rule == "LION", rule == "ADAMW" or rule == "ADAM"
  for step = 1, STEPS do
    local g = gradient(step) + (decoupled and 0 or DECAY * w)
    if decoupled then w = w * (1 - RATE * DECAY) end
    if adam then
      m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
      w = w - RATE * m / (1 - BETA1 ^ step) / (math.sqrt(v / (1 - BETA2 ^ step)) + EPS)
    elseif rule == "LION" then
      w = w - (BETA1 * m + (1 - BETA1) * g > 0 and RATE or -RATE)
      m = BETA2 * m + (1 - BETA2) * g
    else
      m = MOMENTUM * m + g
      w = w - RATE * (rule == "SGD" and g or rule == "SGD_MOMENTUM" and m or g + MOMENTUM * m)
    end
  end
  return w, {m, v}
end

local function fails(name, words, call)
  local good, problem = pcall(call)
  assert(not good and problem.name == name and problem.text:find(words, 1, true), "expected " .. name .. ", not " .. tostring(problem))
end

local function tell(options, values)
  options.lr, options.weight_decay = RATE, DECAY
  for name, value in pairs(values) do options[name] = value end
  return options
end

local function options_of(rule, first)
  local options = tell(megadp.OptimizerOptions(), rule[2])
  options.rule = megadp["Rule_" .. rule[1]]
  if first then options.first_param_group = first end
  return options
end

local function two_groups()
  local params = megadp.Params()
  for i, name in ipairs({"w", "v"}) do
    local param = megadp.Param(name)
    param.param_group = i - 1
    params:add(param)
  end
  local buffer = megadp.Buffer.create(comm, params, megadp.BufferOptions())
  for i = 0, 1 do buffer:write(i, {1}) end
  return buffer
end

local function put(buffer, value)
  for i = 1, 0, -1 do buffer:put(i, {value}) end
end

local function check(buffer, optimizer, param, rule)
  local w, state = after(rule[1])
  local found = buffer:read(param)[1]
  assert(math.abs(found - w) < 1e-5, rule[1] .. ": " .. found .. "; expected " .. w)
  for i, name in ipairs(rule[3]) do
    local view = optimizer:state(param, name)
    assert(view:size() == 0 or math.abs(view:get(0) - state[i]) < 1e-5, rule[1] .. ": " .. name)
  end
  if #rule[3] == 0 then fails("MDP_E_INVALID", "name is 'exp_avg'", function() optimizer:state(param, "exp_avg") end) end
end

local function alone(rule)
  local buffer, options = two_groups(), megadp.OptimizerOptions()
  options.rule = megadp["Rule_" .. rule[1]]
  for _ = 1, 2 do options:add_param_group(tell(megadp.ParamGroup(), rule[2])) end
  local optimizer = megadp.Optimizer.create(buffer, options)
  for step = 1, STEPS do
    put(buffer, gradient(step))
    optimizer:step(megadp.StepOptions())
  end
  for param = 0, 1 do check(buffer, optimizer, param, rule) end
end

local function together(one, other)
  local buffer, both = two_groups(), megadp.Optimizers()
  local first = megadp.Optimizer.create(buffer, options_of(one, 0))
  local second = megadp.Optimizer.create(buffer, options_of(other, 1))
  both:add(first)
  both:add(second)
  local directory = os.getenv("MEGADP_CHECKPOINTS")
  for step = 1, STEPS do
    put(buffer, gradient(step))
    if step % 2 == 0 then
      both:start_step_many(megadp.StepOptions()):wait()
    else
      assert(both:step_many(megadp.StepOptions()).step == step, "the step is counted")
    end
    if step == STEPS // 2 then
      megadp.Checkpoint.save_many(directory, buffer, both, megadp.CheckpointOptions())
      buffer:write(0, {9})
      second:set_steps(7)
      megadp.Checkpoint.load_many(directory, buffer, both, megadp.CheckpointOptions())
    end
  end
  check(buffer, first, 0, one)
  check(buffer, second, 1, other)
end

local function refused()
  local buffer, options = two_groups(), megadp.OptimizerOptions()
  options.momentum = 0
  fails("MDP_E_INVALID", "AdamW has none", function() megadp.Optimizer.create(buffer, options) end)
  local first, both = megadp.Optimizer.create(buffer, options_of(RULES[1], 0)), megadp.Optimizers()
  put(buffer, 1)
  fails("MDP_E_INVALID", "give at least one", function() both:step_many(megadp.StepOptions()) end)
  both:add(first)
  fails("MDP_E_INVALID", "'v' is in parameter group 1", function() both:step_many(megadp.StepOptions()) end)
  first:close()
  fails("MDP_E_STATE", "this Optimizer is closed", function() both:step_many(megadp.StepOptions()) end)
end

local function scaler()
  local buffer = two_groups()
  local options = megadp.OptimizerOptions()
  options.rule = megadp.Rule_SGD
  for _ = 1, 2 do options:add_param_group(megadp.ParamGroup()) end
  local optimizer = megadp.Optimizer.create(buffer, options)
  fails("MDP_E_STATE", "no loss scaler", function() optimizer:scaler() end)
  local given = megadp.Scaler()
  given.scale, given.growth_interval, given.hysteresis = 1024, 3, 2
  optimizer:set_scaler(given)
  local view, scales = optimizer:scale(), {}
  for kind in ("x.xx...x"):gmatch(".") do
    put(buffer, kind == "x" and comm:rank() == 0 and math.huge or view:get(0))
    assert(optimizer:step(megadp.StepOptions()).skipped == (kind == "x"), "an overflow skips the step")
    scales[#scales + 1] = optimizer:scaler().scale // 1 | 0
    assert(view:get(0) == scales[#scales], "the scale where it lies")
  end
  assert(table.concat(scales, " ") == "1024 1024 512 256 256 256 512 512", table.concat(scales, " "))
  optimizer:remove_scaler()
  put(buffer, math.huge)
  fails("MDP_E_NUMERIC", "", function() optimizer:step(megadp.StepOptions()) end)
end

local function averages()
  local buffer = two_groups()
  local options = megadp.OptimizerOptions()
  options.rule, options.lr, options.average_decay = megadp.Rule_SGD, 1, 0.75
  for _ = 1, 2 do options:add_param_group(megadp.ParamGroup()) end
  local optimizer = megadp.Optimizer.create(buffer, options)
  local before = buffer:param(0):get(0)
  put(buffer, -4)
  optimizer:step(megadp.StepOptions())
  optimizer:swap_average()
  assert(buffer:param(0):get(0) == before + 1, "the average in the parameter's place")
  fails("MDP_E_STATE", "swap them back first", function() optimizer:step(megadp.StepOptions()) end)
  optimizer:swap_average()
  assert(buffer:param(0):get(0) == before + 4, "the parameter in its own")
end

for i, rule in ipairs(RULES) do
  alone(rule)
  together(rule, RULES[(i + 1) % #RULES + 1])
end
refused()
scaler()
averages()
comm:barrier()
print("as the formulas")
