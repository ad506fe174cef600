-- SPDX-License-Identifier: Apache-2.0
-- What test_scripting.py runs: what is no list of numbers, no whole number and no object is refused, by a sentence that names it.
local megadp = require("megadp")

local function refused(named, call)
  local done, sentence = pcall(call)
  sentence = tostring(sentence)
  assert(not done and sentence:find(named, 1, true), (done and "not refused: " or sentence .. " does not say ") .. named)
end

local params = megadp.Params()
local param = megadp.Param("v")
param:add_dimension(3)
params:add(param)
local comm = megadp.Comm.create(megadp.CommOptions())
local buffer = megadp.Buffer.create(comm, params, megadp.BufferOptions())

refused("values of Buffer_write: element 2 is a string", function() buffer:write(0, {1, "x", 3}) end)
refused("element 2 is a nil", function() buffer:write(0, {1, nil, 3}) end)
refused("element 1 is a table", function() buffer:write(0, {{1}, {2}, {3}}) end)
refused("element 3 is a boolean", function() buffer:write(0, {1, 2, true}) end)
for _, none in ipairs({0.9, 0 / 0, 2 ^ 64}) do
  refused("param of Buffer_read is ", function() buffer:read(none) end)
end
refused("root of Comm_broadcast is 4294967296; it must be a whole number of 32 bits", function() comm:broadcast({1}, 1 << 32) end)
refused("self of Buffer_read is nil", function() buffer.read(nil, 0) end)
local options = megadp.OptimizerOptions()
for _, none in ipairs({1.5, 2 ^ 64}) do
  refused("whole number of 64 bits", function() options.first_param_group = none end)
end
options.first_param_group = 1 << 32
refused("first_param_group must be 0 to 2147483647, not 4294967296", function() megadp.Optimizer.create(buffer, options) end)
assert(megadp.Param(12.5):name() == "12.5") -- a number as text, as elsewhere in Lua
refused("more after a NUL", function()
  local cut = megadp.Params()
  cut:add(megadp.Param("v\0w"))
  megadp.Buffer.create(comm, cut, megadp.BufferOptions())
end)
buffer:write(0.0, {4, 5, 6.5})
assert(table.concat(buffer:read(0), " ") == "4.0 5.0 6.5")
local proxy = setmetatable({}, {__len = function() return 3 end, __index = function(_, i) return 10 * i end})
buffer:write(0, proxy)
assert(table.concat(buffer:read(0), " ") == "10.0 20.0 30.0")
refused("values of Buffer_write: element 1 is a string", function() buffer:write(0, setmetatable({}, {__len = function() return 3 end, __index = function() return "x" end})) end)
refused("not today", function() buffer:write(0, setmetatable({}, {__len = function() error("not today") end})) end)
refused("has shape [0]", function() buffer:write(0, setmetatable({}, {__index = proxy})) end)
local whole = megadp.Param("seen")
whole.dtype = megadp.DType_I64
local seen = megadp.CheckpointParts():add_tensor(whole)
refused("an array of CheckpointParts.add_tensor or of a Halo must be F32 or U8", function() seen:get(0) end)
refused("'megadp::CommOptions *' got 'userdata'", function() megadp.Comm.create(io.stdout) end)
refused("'megadp::Buffer *' got 'userdata'", function() buffer.read(io.stdout, 0) end)
assert(megadp.Doubles == nil) -- lists are tables; its front() and reserve() could end the process
local function resident()
  for line in io.lines("/proc/self/status") do
    if line:find("VmRSS") then return tonumber(line:match("%d+")) end
  end
end
local large, before = megadp.Param("large"), resident()
large.dtype = megadp.DType_U8
large:add_dimension(1 << 30)
local view = megadp.CheckpointParts():add_tensor(large)
assert(view:get((1 << 30) - 1) == 0 and resident() < before + (1 << 18), "what is not written yet takes memory")
local optimizer = megadp.Optimizer.create(buffer, megadp.OptimizerOptions())
optimizer:set_steps(2 ^ 40 + 1)
assert(optimizer:steps(0) == 2 ^ 40 + 1)
print("refused")
