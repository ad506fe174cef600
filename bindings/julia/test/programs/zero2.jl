# SPDX-License-Identifier: Apache-2.0
# Two ranks: the same model trained with zero1 and with zero2, and with two optimizer instances, whose parameters are compared bit for bit;
# and sums over microbatches.
include("rank.jl")
include("tape.jl")

const SIZES = (48, 40, 24, 8)

model() = Tuple((w = [sin(Float32(i * j)) / 8 for i in 1:SIZES[k], j in 1:SIZES[k+1]], b = zeros(Float32, SIZES[k+1])) for k in 1:3)

"The gradients of all layers for this rank's part of a step's batch; with `hand_over` the layers have put their own."
function gradients(comm, layers, step, hand_over)
    tape = Tape()
    output = [cos(Float32(i * column + 7step + 31local_rank(comm))) for i in 1:SIZES[1], column in 1:16]
    for (k, layer) in enumerate(layers)
        output = forward!(tape, Dense(k < 3, layer), output, hand_over)
    end
    _, change = cross_entropy(output, [(column + step) % 8 for column in 1:16])
    return Tuple(backward!(tape, change))
end

"Hands over by writing where the gradients go, as a framework that can."
function write_all(buffer, grads)
    for (i, grad) in reverse(collect(enumerate(Iterators.flatten(grads))))
        acquire_grad((array, first) -> first ? copyto!(array, grad) : (array .+= grad), buffer, i)
    end
end

function trained(comm, how; over = comm, keywords...)
    dp = DataParallel(over, model(); lr = 1e-2, max_grad_norm = 1.0, bucket_elements = 1, async = how == :overlapped, keywords...)
    for step in 1:6
        grads = gradients(comm, dp.model, step, how == :overlapped)
        how == :written && write_all(dp.buffer, grads)
        step!(dp, how == :whole ? grads : nothing)
    end
    wait(dp)
    verify(dp.buffer)
    found = reinterpret(UInt32, reduce(vcat, map(vec ∘ copy, dp.arrays)))
    close(dp)
    return found
end

function microbatches(comm)
    buffer = Buffer(comm, [Param("a", (400,)), Param("b", (20, 30))]; sharding = :zero2, bucket_elements = 1)
    for k in 1:3
        microbatch!(buffer; last = k == 3)
        put!(buffer, "b", fill(Float32(k + local_rank(comm)), 20, 30))
        put!(buffer, "a", fill(Float32(k), 400))
    end
    sync!(buffer)
    whole = sum(length(owned_grad(buffer, i)) for i in 1:2) == sum(length(piece.range) for piece in owned(buffer))
    right = all(==(6), owned_grad(buffer, 1)) && all(==(7.5), owned_grad(buffer, 2))
    sent = stats(buffer).buckets == 6
    close(buffer)
    return whole && right && sent
end

Comm() do comm
    expected = trained(comm, :whole)
    for how in (:whole, :overlapped, :written)
        for slots in (nothing, 1)
            report(comm, string(how), trained(comm, how; sharding = :zero2, pool_buckets = slots) == expected ? 1 : 0)
        end
    end
    unclipped = trained(comm, :whole; max_grad_norm = 0)
    cut = Grid(comm; instances = 2)
    for sharding in (:zero1, :zero2)
        report(comm, "instances", trained(comm, :whole; over = cut, sharding = sharding, max_grad_norm = 0) == unclipped ? 1 : 0)
    end
    buffer = Buffer(cut, [Param("w", (100,))])
    report(comm, "owned", sum(length(piece.range) for piece in owned(buffer)))
    close(buffer)
    report(comm, "microbatches", microbatches(comm) ? 1 : 0)
    barrier(comm)
end
