# SPDX-License-Identifier: Apache-2.0
# An embedding and a cross-entropy whose vocabulary is cut over two ranks against the whole ones, by the rules of the AD. Numbers of the table are
# small multiples of 1/4, so that their sums are exact.

"The columns of a table, and what comes back of them."
function embedding(comm, sequence, grad, lay)
    rank, ids = local_rank(comm), Int32[6 1; 3 6; 2 2; 6 4]
    table, dy = small(1, 3, 6), small(2, 3, 4, 2)
    d_table = zeros(Float32, 3, 6)
    foreach(i -> d_table[:, ids[i]] .+= flat(dy)[:, i], eachindex(ids))
    part, mine = sequence ? (rank+1:rank+1) : (1:2), share(6, rank)
    layer = TpEmbedding(comm, 6; grad = grad, sequence = sequence, check_replicated = true)
    y, back = ChainRulesCore.rrule(layer, lay(ids), lay(table[:, mine]))
    change = grad != :partial ? dy[:, :, part] : rank == 0 ? dy .- 1 : ones(Float32, size(dy))
    self, of_ids, d_weight = back(ChainRulesCore.Thunk(() -> Float64.(lay(change))))
    good = self isa ChainRulesCore.NoTangent && of_ids isa ChainRulesCore.NoTangent && y == table[:, ids[:, part]] && d_weight == d_table[:, mine]
    sums = fill(1.0f0, 3, 3)
    MegaDP.backward!(layer, sums, lay(change), lay(ids); add = true)
    return good && sums == d_table[:, mine] .+ 1
end

"Losses of (classes, tokens...) and their gradients, of targets that are not 0."
function whole_losses(logits, targets, given, smoothing, z)
    classes = size(logits, 1)
    x, losses, grads = Float64.(logits), zeros(size(targets)), zeros(size(logits))
    for i in CartesianIndices(targets)
        targets[i] == 0 && continue
        q = [v == targets[i] ? 1 - smoothing : smoothing / (classes - 1) for v in 1:classes]
        log_sum = log(sum(exp.(x[:, i])))
        losses[i] = sum(q .* (log_sum .- x[:, i])) + z * log_sum^2
        grads[:, i] = given[i] .* (exp.(x[:, i] .- log_sum) .* (1 + 2z * log_sum) .- q)
    end
    return losses, grads
end

"Of 5 classes, and one column of padding; target 0 is ignored."
function cross_entropy(comm, smoothing, z, lay)
    targets, given = [5 1 0; 3 5 2], Float32[1 2 3; 4 5 6]
    logits = small(3, 5, 2, 3)
    losses, grads = whole_losses(logits, targets, given, smoothing, z)
    padded, mine = cat(logits, fill(99.0f0, 1, 2, 3); dims = 1), share(6, local_rank(comm))
    loss = TpCrossEntropy(comm; classes = 5, ignore = 0, label_smoothing = smoothing, z_loss = z, check_replicated = true)
    found, back = ChainRulesCore.rrule(loss, lay(padded[mine, :, :]), lay(targets))
    self, d_logits, of_targets = back(ChainRulesCore.Thunk(() -> Float64.(lay(given))))
    return self isa ChainRulesCore.NoTangent && of_targets isa ChainRulesCore.NoTangent && isapprox(found, losses; atol = 1e-5) &&
           found == loss(padded[mine, :, :], targets) && found[1, 3] == 0 &&
           isapprox(d_logits, cat(grads, zeros(1, 2, 3); dims = 1)[mine, :, :]; atol = 1e-5)
end

"A token that is no array of them, and the gradient in the logits' place; class 1 can be ignored."
function one_token(comm)
    logits = fill(2.0f0, 2)
    loss, saved = TpCrossEntropy(comm), fill(NaN32, 2)
    found = MegaDP.forward!(loss, fill(NaN32), logits, fill(3); saved = saved)
    MegaDP.backward!(loss, logits, fill(4.0f0), logits, fill(3), saved)
    good = isapprox(found[], log(4); atol = 1e-6) && logits ≈ (local_rank(comm) == 0 ? [1, 1] : [-3, 1])
    return good && TpCrossEntropy(comm; ignore = 1)(ones(Float32, 2, 2), [1, 2]) ≈ Float32[0, log(4)]
end

function seeds(comm, grid)
    return random_seed(grid, typemax(UInt64), :replicated) == typemax(UInt64) && random_seed(grid, -1, :replicated) == typemax(UInt64) &&
           random_seed(grid, 5, :tensor) == 5 + 2718 + local_rank(comm) && random_seed(grid, 5, :expert) == 5 + 1024 + local_rank(comm)
end

function vocabulary(comm, grid)
    for lay in (identity, turned, spread)
        foreach(((sequence, grad),) -> report(comm, "embedding", embedding(comm, sequence, grad, lay)),
                ((false, :replicated), (false, :partial), (true, :unset)))
        foreach(((smoothing, z),) -> report(comm, "losses", cross_entropy(comm, smoothing, z, lay)), ((0.0, 0.0), (0.25, 0.5)))
    end
    report(comm, "token", one_token(comm))
    report(comm, "seeds", seeds(comm, grid))
end
