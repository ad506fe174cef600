# SPDX-License-Identifier: Apache-2.0
# What test_scripting.py runs with 1 and 2 ranks: a line, fitted; the failures; views. Every rank prints the same.
folder <- Sys.getenv("MEGADP_MODULE")
dyn.load(file.path(folder, "megadp.so"))
source(file.path(folder, "megadp.R"))
cacheMetaData(1)

fails <- function(what, call) {
  failure <- tryCatch({ call(); NULL }, megadp_error = function(condition) condition)
  if (is.null(failure)) stop(what, " does not fail")
  cat(what, failure$name, failure$param, failure$rank, "\n")
  conditionMessage(failure)
}

# A step whose gradients are put and written where they go, with so many optimizer instances: what it leaves.
sharded_step <- function(comm, rank, sharding, instances) {
  zero2 <- sharding == "ZERO_2"
  layers <- Params()
  for (name in c("lower", "upper")) {
    param <- Param(name)
    Param_add_dimension(param, 3)
    Params_add(layers, param)
  }
  sharded <- BufferOptions()
  BufferOptions_sharding_set(sharded, sharding)
  BufferOptions_bucket_elements_set(sharded, 1)
  if (zero2) BufferOptions_pool_buckets_set(sharded, 2)
  cut <- GridOptions()
  GridOptions_instances_set(cut, instances)
  pooled <- Buffer_create_on(Grid_create(comm, cut), layers, sharded)
  adam <- Optimizer_create(pooled, OptimizerOptions())
  lent <- Buffer_acquire(pooled, 1)
  stopifnot(View_first(lent), View_size(lent) == 3)
  View_set_values(lent, c(9, 9, 9))
  if (zero2) {
    fails("view", function() Buffer_grad(pooled, 0))
    fails("lent", function() Buffer_put(pooled, 1, c(1, 2, 3)))
  }
  Buffer_release(pooled, 1)
  if (zero2) fails("released", function() View_get(lent, 0))
  lent <- Buffer_acquire(pooled, 1)
  View_set_values(lent, c(1 / 3 + rank, 2 / 3, 3 / 7))
  Buffer_ready(pooled, 1)
  Buffer_put(pooled, 0, c(1 / 7, rank / 3, -1 / 9))
  Buffer_sync(pooled)
  size <- 0
  for (i in 0:1) {
    owned <- Buffer_owned_grad(pooled, i)
    if (View_size(owned) > 0) View_set_values(owned, 2 * View_values(owned))
    size <- size + View_size(owned)
  }
  size <- Comm_all_reduce(comm, as.numeric(size), "SUM")[1] / instances
  Buffer_grads_changed(pooled)
  norm <- Buffer_grad_norm(pooled)
  Optimizer_step(adam, StepOptions())
  if (zero2) cat("pooled", size, Stats_spill_peak_bytes_get(Buffer_stats(pooled)), "\n")
  c(norm, size, Buffer_read(pooled, 0), Buffer_read(pooled, 1))
}

# A checkpoint brings back what was saved.
restored <- function(buffer, optimizer, rank, directory) {
  saved <- Buffer_read(buffer, 0)
  about <- CheckpointOptions()
  CheckpointOptions_shared_data_set(about, "all")
  CheckpointOptions_rank_data_set(about, paste0("r", rank))
  CheckpointOptions_keep_set(about, 1)
  Checkpoint_save(directory, buffer, optimizer, about)
  Buffer_write(buffer, 0, 99.0)
  Optimizer_set_steps(optimizer, 1)
  Checkpoint_load(directory, buffer, optimizer, CheckpointOptions())
  same <- if (identical(saved, Buffer_read(buffer, 0))) 1 else 0
  cat("restored", same, Optimizer_steps(optimizer, 1), Checkpoint_data(directory, -1), Checkpoint_data(directory, 0), "\n")
  stopifnot(grepl("checkpoint-000001", Checkpoint_info(directory)))
  fails("absent", function() Checkpoint_info(paste0(directory, "/absent")))
}

# Two buffers, one of them without an optimizer, and an array of this program's own in one checkpoint.
in_parts <- function(comm, buffer, optimizer, directory) {
  saved <- Buffer_read(buffer, 0)
  parts <- CheckpointParts()
  mean <- Param("mean")
  Param_add_dimension(mean, 2)
  late <- Params()
  Params_add(late, Param("late"))
  second <- Buffer_create(comm, late, BufferOptions())
  memory <- CheckpointParts_add_tensor(parts, mean)
  CheckpointParts_add(parts, buffer, optimizer)
  CheckpointParts_add_buffer(parts, second)
  View_set_values(memory, c(3, 4))
  Buffer_write(second, 0, 6.0)
  CheckpointParts_save(parts, directory, CheckpointOptions())
  Request_wait(CheckpointParts_start_save(parts, directory, CheckpointOptions()))
  View_set_values(memory, c(0, 0))
  Buffer_write(second, 0, 0.0)
  Buffer_write(buffer, 0, 99.0)
  CheckpointParts_load(parts, directory, CheckpointOptions())
  same <- if (identical(saved, Buffer_read(buffer, 0))) 1 else 0
  cat("parts", same, View_get(memory, 1), Buffer_read(second, 0), "\n")
  Param_add_dimension(mean, -1)
  fails("sized", function() CheckpointParts_add_tensor(parts, mean))
}

# Sent as bf16 and checked; and in which order gradients came.
checked <- function(comm, last) {
  sent <- BufferOptions()
  BufferOptions_wire_dtype_set(sent, "BF16")
  BufferOptions_error_feedback_set(sent, TRUE)
  BufferOptions_check_finite_set(sent, TRUE)
  BufferOptions_check_large_set(sent, TRUE)
  pair <- Params()
  for (name in c("v", "u")) {
    param <- Param(name)
    Param_add_dimension(param, 1)
    Param_use_order_set(param, if (name == "v") 1 else 0)
    Params_add(pair, param)
  }
  buffer <- Buffer_create(comm, pair, sent)
  Buffer_put(buffer, 0, 1.0)
  Buffer_put(buffer, 1, if (last) Inf else 1.0)
  stopifnot(grepl("'u'", fails("numeric", function() Buffer_sync(buffer))))
  scaled <- StepOptions()
  StepOptions_loss_scale_set(scaled, 2)
  skipped <- StepReport_skipped_get(Optimizer_step(Optimizer_create(buffer, OptimizerOptions()), scaled))
  Buffer_put(buffer, 0, 1.0)
  Buffer_put(buffer, 1, 1.0)
  Buffer_sync(buffer)
  cat("sent", as.integer(skipped), Buffer_use_order(buffer), Stats_large_gradients_get(Buffer_stats(buffer)), "\n")
}

main <- function() {
  comm <- Comm_create(CommOptions())
  rank <- Comm_rank(comm)
  ranks <- Comm_size(comm)
  params <- Params()
  for (name in c("w", "b")) {
    param <- Param(name)
    Param_add_dimension(param, 1)
    Params_add(params, param)
  }
  buffer <- Buffer_create(comm, params, BufferOptions())
  options <- OptimizerOptions()
  OptimizerOptions_lr_set(options, 0.1)
  optimizer <- Optimizer_create(buffer, options)
  for (step in 1:40) {
    w <- Buffer_read(buffer, 0)[1]
    b <- Buffer_read(buffer, 1)[1]
    x <- seq(rank, 63, by = ranks) / 32 - 1
    e <- w * x + b - (2 * x - 1)
    Buffer_put(buffer, 1, sum(e) / 32 * ranks)
    Buffer_put(buffer, 0, sum(e * x) / 32 * ranks)
    Optimizer_step(optimizer, StepOptions())
  }
  cat(sprintf("fit %.2f %.2f\n", Buffer_read(buffer, 0)[1], Buffer_read(buffer, 1)[1]))
  cat("sum", Comm_all_reduce(comm, as.numeric(rank + 1), "SUM")[1] - ranks * (ranks + 1) / 2, "\n")

  Buffer_put(buffer, 1, 1.0)
  if (rank < ranks - 1) Buffer_put(buffer, 0, 1.0)
  stopifnot(grepl("'w'", fails("missing", function() Buffer_sync(buffer))))
  fails("bad", function() Buffer_put(buffer, 7, 1.0))
  fails("shape", function() Buffer_put(buffer, 1, c(1.0, 2.0)))
  Buffer_begin_microbatch(buffer, TRUE)
  Buffer_put(buffer, 1, 1.0)
  Buffer_put(buffer, 0, 1.0)
  request <- Buffer_start_sync(buffer)
  Request_wait(request)
  norms <- c(Buffer_grad_norm(buffer), Buffer_grad_norm_of(buffer, 0.0))
  Buffer_scale_grads_of(buffer, 0.5, 1.0)
  norms <- c(norms, Buffer_grad_norm_of(buffer, 1.0), Buffer_grad_norm_of(buffer, numeric(0)))
  Buffer_scale_grads(buffer, 2.0)
  norms <- c(norms, Buffer_grad_norm(buffer))
  View_set(Buffer_grad(buffer, 0), 0, 0.0)
  Buffer_grads_changed(buffer)
  norms <- c(norms, Buffer_grad_norm_of(buffer, c(0.0, 1.0)))
  cat("norm", sprintf("%.2f", norms), "\n")
  fails("listed", function() Buffer_grad_norm_of(buffer, 7.0))
  cat("steps", StepReport_step_get(Optimizer_step(optimizer, StepOptions())), Optimizer_steps(optimizer, 1), "\n")
  Optimizer_set_steps(optimizer, 100)
  before <- Optimizer_steps(optimizer, 1)
  counts <- Counts()
  Counts_add(counts, 9)
  Counts_add(counts, 7)
  Optimizer_set_steps_of(optimizer, 9, counts)
  cat("set", before, Optimizer_steps(optimizer, 1), substr(Optimizer_info(optimizer), 10, 14), "\n")
  Buffer_wait_all(buffer)
  restored(buffer, optimizer, rank, Sys.getenv("MEGADP_CHECKPOINTS"))
  in_parts(comm, buffer, optimizer, file.path(Sys.getenv("MEGADP_CHECKPOINTS"), "parts"))

  reversed <- Comm_split(comm, 0, -rank)
  cat("names", Buffer_find(buffer, "b"), Buffer_find(buffer, "w"), Buffer_buckets(buffer), Comm_world_rank(reversed, 0) - (ranks - 1), "\n")
  fails("unknown", function() Buffer_find(buffer, "v"))
  Buffer_write(buffer, 0, 7.0 + rank)
  Buffer_broadcast(buffer, 0)
  Request_wait(Buffer_start_broadcast(buffer, ranks - 1))
  Request_wait(Comm_start_barrier(comm))
  OptimizerOptions_lr_set(options, 0.0)
  still <- Optimizer_create(buffer, options)
  Buffer_put(buffer, 1, 1.0)
  Buffer_put(buffer, 0, 1.0)
  Optimizer_step(still, StepOptions())
  cat("value", Buffer_read(buffer, 0)[1], "\n")
  checked(comm, rank == ranks - 1)
  one <- sharded_step(comm, rank, "ZERO_1", 1)
  two <- sharded_step(comm, rank, "ZERO_2", 1)
  cat("zero2", if (identical(one, two)) "same" else c(one, two), "\n")
  cut <- sharded_step(comm, rank, "ZERO_1", ranks)
  cat("instances", if (identical(one, cut)) "same" else c(one, cut), "\n")
  Comm_barrier(comm)  # a rank whose program ends must have been needed for the last time
  view <- Buffer_param(buffer, 1)
  Buffer_close(buffer)
  Comm_close(comm)
  stopifnot(grepl("is closed", fails("closed", function() Buffer_read(buffer, 0))))
  View_set(view, 0, 5.5)
  gc()
  cat("view", View_get(view, 0), "\n")
}

main()
