# SPDX-License-Identifier: Apache-2.0
# What test_scripting.py runs with 1 and 2 ranks: a line, fitted; the failures; views. Every rank prints the same.
require "megadp"

def fails(what)
  yield
  abort "#{what} does not fail"
rescue Megadp::Error => e
  puts "#{what} #{e.name} #{e.param} #{e.rank}"
  e.message
end

options = Megadp::CommOptions.new
options.timeout_seconds = 60
comm = Megadp::Comm.create(options)
rank, ranks = comm.rank, comm.size
params = Megadp::Params.new
%w[w b].each do |name|
  param = Megadp::Param.new(name)
  param.add_dimension(1)
  params.add(param)
end
buffer = Megadp::Buffer.create(comm, params, Megadp::BufferOptions.new)
options = Megadp::OptimizerOptions.new
options.lr = 0.1
optimizer = Megadp::Optimizer.create(buffer, options)
40.times do
  w, b = buffer.read(0)[0], buffer.read(1)[0]
  grad_w = grad_b = 0
  rank.step(63, ranks) do |i|
    x = i / 32.0 - 1
    e = w * x + b - (2 * x - 1)
    grad_w += e * x / 32 * ranks
    grad_b += e / 32 * ranks
  end
  buffer.put(1, [grad_b])
  buffer.put(0, [grad_w])
  optimizer.step(Megadp::StepOptions.new)
end
puts format("fit %.2f %.2f", buffer.read(0)[0], buffer.read(1)[0])
puts "sum #{comm.all_reduce([rank + 1], Megadp::Op_SUM)[0].to_i - ranks * (ranks + 1) / 2}"

# The last rank comes to the barrier once another thread of rank 0 has run, which waits there without the interpreter's lock.
flag = ENV.fetch("MEGADP_FLAG")
if ranks > 1 && rank.zero?
  Thread.new do
    sleep(0.02)
    File.write(flag, "")
  end
end
sleep(0.005) until ranks == 1 || rank < ranks - 1 || File.exist?(flag)
comm.barrier

buffer.put(1, [1])
buffer.put(0, [1]) if rank < ranks - 1
abort "unnamed" unless fails("missing") { buffer.sync }.include?("'w'")
fails("bad") { buffer.put(7, [1]) }
fails("shape") { buffer.put(1, [1, 2]) }
buffer.begin_microbatch(true)
buffer.put(1, [1])
buffer.put(0, [1])
buffer.start_sync.wait
norms = [buffer.grad_norm, buffer.grad_norm_of([0])]
buffer.scale_grads_of(0.5, [1])
norms.push(buffer.grad_norm_of([1]), buffer.grad_norm_of([]))
buffer.scale_grads(2)
norms.push(buffer.grad_norm)
buffer.grad(0).set(0, 0)
buffer.grads_changed
norms.push(buffer.grad_norm_of([0, 1]))
puts "norm #{norms.map { |norm| format("%.2f", norm) }.join(" ")}"
fails("listed") { buffer.grad_norm_of([7]) }
puts "steps #{optimizer.step(Megadp::StepOptions.new).step} #{optimizer.steps(1)}"
optimizer.set_steps(100)
before, counts = optimizer.steps(1), Megadp::Counts.new
[9, 7].each { |count| counts.add(count) }
optimizer.set_steps_of(9, counts)
puts "set #{before} #{optimizer.steps(1)} #{optimizer.info[9, 5]}"
buffer.wait_all
saved, directory, about = buffer.read(0)[0], ENV["MEGADP_CHECKPOINTS"], Megadp::CheckpointOptions.new
about.shared_data, about.rank_data, about.keep = "all", "r#{rank}", 1
Megadp::Checkpoint.save(directory, buffer, optimizer, about)
buffer.write(0, [99])
optimizer.set_steps(1)
Megadp::Checkpoint.load(directory, buffer, optimizer, Megadp::CheckpointOptions.new)
same = buffer.read(0)[0] == saved ? 1 : 0
puts "restored #{same} #{optimizer.steps(1)} #{Megadp::Checkpoint.data(directory, -1)} #{Megadp::Checkpoint.data(directory, 0)}"
raise "unnamed" unless Megadp::Checkpoint.info(directory).include?("checkpoint-000001")
fails("absent") { Megadp::Checkpoint.info("#{directory}/absent") }

# Two buffers, one of them without an optimizer, and an array of this program's own in one checkpoint.
parts, late, mean = Megadp::CheckpointParts.new, Megadp::Params.new, Megadp::Param.new("mean")
mean.add_dimension(2)
late.add(Megadp::Param.new("late"))
second, memory = Megadp::Buffer.create(comm, late, Megadp::BufferOptions.new), parts.add_tensor(mean)
parts.add(buffer, optimizer)
parts.add_buffer(second)
memory.set_values([3, 4])
second.write(0, [6])
parts.save("#{directory}/parts", about)
parts.start_save("#{directory}/parts", about).wait
memory.set_values([0, 0])
second.write(0, [0])
buffer.write(0, [99])
parts.load("#{directory}/parts", Megadp::CheckpointOptions.new)
puts "parts #{buffer.read(0)[0] == saved ? 1 : 0} #{memory.get(1).to_i} #{second.read(0)[0].to_i}"
mean.add_dimension(-1)
fails("sized") { parts.add_tensor(mean) }

reversed = comm.split(0, -rank)
puts "names #{buffer.find("b")} #{buffer.find("w")} #{buffer.buckets} #{reversed.world_rank(0) - (ranks - 1)}"
fails("unknown") { buffer.find("v") }
buffer.write(0, [7 + rank])
buffer.broadcast(0)
buffer.start_broadcast(ranks - 1).wait
comm.start_barrier.wait
options.lr = 0
still = Megadp::Optimizer.create(buffer, options)
buffer.put(1, [1])
buffer.put(0, [1])
still.step(Megadp::StepOptions.new)
puts "value #{buffer.read(0)[0].to_i}"

# Sent as bf16 and checked; and in which order gradients came.
sent = Megadp::BufferOptions.new
sent.wire_dtype = Megadp::DType_BF16
sent.error_feedback = sent.check_finite = sent.check_large = true
pair = Megadp::Params.new
%w[v u].each_with_index do |name, i|
  param = Megadp::Param.new(name)
  param.add_dimension(1)
  param.use_order = 1 - i
  pair.add(param)
end
checked = Megadp::Buffer.create(comm, pair, sent)
checked.put(0, [1])
checked.put(1, [rank == ranks - 1 ? Float::INFINITY : 1])
abort "unnamed" unless fails("numeric") { checked.sync }.include?("'u'")
scaled = Megadp::StepOptions.new
scaled.loss_scale = 2
skipped = Megadp::Optimizer.create(checked, Megadp::OptimizerOptions.new).step(scaled).skipped
checked.put(0, [1])
checked.put(1, [1])
checked.sync
puts "sent #{skipped ? 1 : 0} #{checked.use_order.to_a.map(&:to_i).join(" ")} #{checked.stats.large_gradients}"

# The same step with ZERO_1 and with ZERO_2, whose gradients are put and written where they go; and with several optimizer instances.
ways = [[Megadp::Sharding_ZERO_1, 1], [Megadp::Sharding_ZERO_2, 1], [Megadp::Sharding_ZERO_1, ranks]]
found = ways.map do |sharding, instances|
  layers = Megadp::Params.new
  %w[lower upper].each do |name|
    param = Megadp::Param.new(name)
    param.add_dimension(3)
    layers.add(param)
  end
  sharded = Megadp::BufferOptions.new
  sharded.sharding = sharding
  sharded.bucket_elements = 1
  zero2 = sharding == Megadp::Sharding_ZERO_2
  sharded.pool_buckets = 2 if zero2
  cut = Megadp::GridOptions.new
  cut.instances = instances
  pooled = Megadp::Buffer.create_on(Megadp::Grid.create(comm, cut), layers, sharded)
  adam = Megadp::Optimizer.create(pooled, Megadp::OptimizerOptions.new)
  lent = pooled.acquire(1)
  abort "first" unless lent.first && lent.size == 3
  lent.set_values([9, 9, 9])
  if zero2
    fails("view") { pooled.grad(0) }
    fails("lent") { pooled.put(1, [1, 2, 3]) }
  end
  pooled.release(1)
  fails("released") { lent.get(0) } if zero2
  lent = pooled.acquire(1)
  lent.set_values([1 / 3.0 + rank, 2 / 3.0, 3 / 7.0])
  pooled.ready(1)
  pooled.put(0, [1 / 7.0, rank / 3.0, -1 / 9.0])
  pooled.sync
  owned = [0, 1].map { |i| pooled.owned_grad(i) }
  size = comm.all_reduce([owned[0].size + owned[1].size], Megadp::Op_SUM)[0] / instances
  owned.each { |view| view.set_values(view.values.to_a.map { |value| 2 * value }) }
  pooled.grads_changed
  norm = pooled.grad_norm
  adam.step(Megadp::StepOptions.new)
  puts "pooled #{size.to_i} #{pooled.stats.spill_peak_bytes}" if zero2
  [norm, size, pooled.read(0).to_a, pooled.read(1).to_a]
end
puts "zero2 #{found[0] == found[1] ? "same" : found}"
puts "instances #{found[0] == found[2] ? "same" : found}"
comm.barrier # a rank whose program ends must have been needed for the last time
abort "lists have a class, whose back and reserve end the process" if Megadp.const_defined?(:Doubles)
view = buffer.param(1)
buffer.close
comm.close
abort "open" unless fails("closed") { buffer.read(0) }.include?("is closed")
view.set(0, 5.5)
GC.start
puts "view #{view.get(0)}"
