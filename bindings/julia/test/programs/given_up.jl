# SPDX-License-Identifier: Apache-2.0
# Two ranks. A batch is given up after one of two wrapped layers has handed over its gradients, which have left: by both ranks, or by one alone, while the
# other takes its step.
include("rank.jl")

const SHARDINGS = (:zero0, :zero1, :zero2)
batch(value) = (a = (layer = (w = fill(Float32(value), 4),),), b = (layer = (w = fill(Float32(value), 3),),))

"What an AD does with a batch; with `to_end = false` an exception comes between the two layers."
function backward(dp, value; to_end = true)
    grads = batch(value)
    foreach(wrapped -> MegaDP.forward_begins(wrapped.layer), dp.model)
    MegaDP.backward_ends(dp.model.b.layer, grads.b.layer)
    to_end && MegaDP.backward_ends(dp.model.a.layer, grads.a.layer)
    return grads
end

"Where each element was before its last step of gradient 1, all alike."
function stepped_to(dp)
    found = unique([dp.model.a.layer.w; dp.model.b.layer.w])
    return length(found) == 1 ? found[1] : "apart"
end

text_of(problem) = problem === nothing ? "nothing" : problem.text

"Both ranks give the batch up in this way; then steps are those of a program that never had it."
function all_give_up(dp, remedy)
    backward(dp, 100; to_end = false)
    remedy(dp)
    step!(dp, backward(dp, 1))
    backward(dp, 1)
    step!(dp)
    return stepped_to(dp)
end

"The remedies that the sentences name, one after the other."
function buffers_own(dp)
    problem = caught(() -> zero_grad!(dp.buffer))  # a bucket has left
    problem === nothing || occursin("zero_grad!(dp) on all ranks", problem.text) || error(problem.text)
    caught(() -> sync!(dp.buffer))
    zero_grad!(dp.buffer)
end

function by_microbatch(dp)
    caught(() -> sync!(dp.buffer))
    microbatch!(dp.buffer; last = true)
end

"Rank 1 gives its batch up; rank 0's step fails by that, and names it."
function one_gives_up(comm, dp)
    if local_rank(comm) == 1
        backward(dp, 100; to_end = false)
        zero_grad!(dp)
    else
        problem = caught(() -> step!(dp, backward(dp, 1)))
        report(comm, "alone", [problem.kind, problem.rank])
    end
    step!(dp, backward(dp, 1))
    return stepped_to(dp)
end

"Without a remedy: no step is taken, and each refusal names it."
function not_given_up(dp)
    backward(dp, 100; to_end = false)
    problems = [caught(() -> backward(dp, 1)), caught(() -> step!(dp, batch(1))), caught(() -> step!(dp))]
    good = all(problem -> problem.kind == :STATE && occursin("zero_grad!(dp) on all ranks", problem.text), problems)
    zero_grad!(dp)
    step!(dp, batch(1))  # as without wrapped layers
    return [good ? "refused" : join(map(text_of, problems), "; "), stepped_to(dp)]
end

Comm(timeout = 120) do comm
    for sharding in SHARDINGS, bucket_count in (1, 2)
        made() = DataParallel(comm, (a = overlap((w = zeros(Float32, 4),)), b = overlap((w = zeros(Float32, 3),)));
                              rule = :sgd, lr = 1.0, sharding = sharding, bucket_count = bucket_count)
        for remedy in (zero_grad!, buffers_own, by_microbatch)
            MegaDP.closing(dp -> report(comm, "together", all_give_up(dp, remedy)), made())
        end
        MegaDP.closing(dp -> report(comm, "one", one_gives_up(comm, dp)), made())
        MegaDP.closing(dp -> report(comm, "stays", not_given_up(dp)), made())
    end
end
