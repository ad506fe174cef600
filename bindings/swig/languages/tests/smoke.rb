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
buffer.wait_all

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
comm.barrier # a rank whose program ends must have been needed for the last time
view = buffer.param(1)
buffer.close
comm.close
abort "open" unless fails("closed") { buffer.read(0) }.include?("is closed")
view.set(0, 5.5)
GC.start
puts "view #{view.get(0)}"
