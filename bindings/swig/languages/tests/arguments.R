# SPDX-License-Identifier: Apache-2.0
# What test_scripting.py runs, a part at a time: what calls take, what they refuse, and what they leave in memory.
folder <- Sys.getenv("MEGADP_MODULE")
dyn.load(file.path(folder, "megadp.so"))
source(file.path(folder, "megadp.R"))
cacheMetaData(1)

# The sentence with which a call is refused; every such sentence names what is wrong in it.
refused <- function(named, call) {
  sentence <- tryCatch(suppressWarnings({ call(); NULL }), error = conditionMessage)
  if (is.null(sentence)) stop("not refused: ", deparse(body(call))[1])
  if (!grepl(named, sentence, fixed = TRUE)) stop("'", sentence, "' does not say '", named, "'")
}

made <- function(comm, size, rule = "ADAMW") {
  params <- Params()
  param <- Param("w")
  for (each in size) Param_add_dimension(param, each)
  Params_add(params, param)
  options <- OptimizerOptions()
  options$rule <- rule
  buffer <- Buffer_create(comm, params, BufferOptions())
  list(buffer = buffer, optimizer = Optimizer_create(buffer, options))
}

# How much memory (MB) a call that is repeated leaves behind.
left <- function(times, call) {
  resident <- function() {
    gc()
    as.numeric(gsub("\\D", "", grep("VmRSS", readLines("/proc/self/status"), value = TRUE))) / 1024
  }
  for (i in seq_len(times)) call()  # R's own memory grows at first
  before <- resident()
  for (i in seq_len(times)) call()
  resident() - before
}

parts <- list()

parts$memory <- function(comm) {
  model <- made(comm, 100000)
  numbers <- as.numeric(1:100000)  # 0.8 MB
  leaks <- c(
    train = left(100, function() {
      Buffer_put(model$buffer, 0, numbers)
      Optimizer_step(model$optimizer, StepOptions())
      Buffer_read(model$buffer, 0)
    }),
    options = left(20000, StepOptions),
    values = left(100, function() View_values(Buffer_param(model$buffer, 0))),
    all_reduce = left(100, function() Comm_all_reduce(comm, numbers, "SUM")),
    refused = left(100, function() refused("shape", function() Buffer_put(model$buffer, 0, numbers[-1]))),
    buffers = left(100, function() Buffer_write(made(comm, 100000)$buffer, 0, numbers)))
  if (any(leaks > 20)) stop("MB left behind: ", paste(names(leaks), round(leaks), collapse = ", "))
}

# A step that an error leaves is finished as failed, on all ranks, by the next collective call.
parts$dropped <- function(comm) {
  model <- made(comm, 8, "CALLER")
  update <- function(fails) {
    step <- Optimizer_begin_step(model$optimizer, StepOptions())
    while (!is.null(Step_next_piece(step))) if (fails) stop("mine")
    Step_finish(step)
  }
  Buffer_put(model$buffer, 0, rep(1, 8))
  if (Comm_rank(comm) == 0) {
    refused("mine", function() update(TRUE))
    gc()
    refused("an update of the caller's has failed", function() update(FALSE))
  } else {
    refused("mdp_optimizer_step_finish: failed is 1", function() update(FALSE))
  }
}

parts$objects <- function(comm) {
  model <- made(comm, 3)
  buffer <- model$buffer
  refused("self of Comm_rank is NULL; it must be of class Comm", function() Comm_rank(NULL))
  refused("options of Optimizer_create is of type list", function() Optimizer_create(buffer, list(lr = 0.1)))
  refused("options of Comm_create is 3", function() Comm_create(3))
  refused("self of Optimizer_step is of class Buffer", function() Optimizer_step(buffer, StepOptions()))
  refused("it must be of class StepOptions", function() Optimizer_step(model$optimizer, OptimizerOptions()))
  file <- tempfile()
  saveRDS(buffer, file)
  refused("self of Buffer_read is an object that is gone", function() Buffer_read(readRDS(file), 0))
  delete_StepOptions(gone <- StepOptions())
  refused("is gone", function() StepOptions_lr_get(gone))
  foreign <- unclass(getLoadedDLLs()[["methods"]])$handle  # an external pointer of R's own
  refused("self of Comm_rank is another package's object", function() Comm_rank(foreign))
  options <- OptimizerOptions()
  refused("learning_rate is no field of OptimizerOptions; it has: rule, lr", function() options$learning_rate <- 0.5)
  refused("rate is no field of StepOptions", function() StepOptions()$rate)
  refused("lr of OptimizerOptions_lr_set is of type character", function() options$lr <- "0.5")
  refused("\"lion\" is no Rule; it must be one of \"ADAMW\"", function() options$rule <- "lion")
  refused("no_overlap of BufferOptions_no_overlap_set is NA; it must be TRUE or FALSE",
          function() BufferOptions_no_overlap_set(BufferOptions(), NA))
}

# A name whose field is set has a copy, as everywhere in R; a field has one name.
parts$copies <- function(comm) {
  base <- OptimizerOptions()
  base$lr <- 1
  low <- base
  low$lr <- 0.5
  (function(options) options[["lr"]] <- 99)(base)
  steps <- StepOptions()
  rates <- lapply(1:3, function(rate) {
    steps$lr <- rate
    steps
  })
  held <- list(options = base)
  held$options$lr <- 3
  twin <- base$copy()
  OptimizerOptions_lr_set(twin, 4)
  stopifnot(base$lr == 1, low$lr == 0.5, held$options$lr == 3, twin$lr == 4, steps$lr == 0, sapply(rates, function(each) each$lr) == 1:3)
  base$add_state("sum")
  with_state <- base
  with_state$rule <- "CALLER"
  stopifnot(base$rule == "ADAMW", with_state$lr == 1)
  refused("l is no field of OptimizerOptions", function() base$l <- 0.7)
  refused("l is no field of OptimizerOptions", function() base$l)
  printed <- capture.output(print(base), base, print(comm), print(list(base)))
  stopifnot(identical(printed[c(1, 3)], c("<OptimizerOptions of megadp>", "<Comm of megadp>")), printed[2] == printed[1])
  stats <- made(comm, 3)$buffer$stats()
  stopifnot(inherits(try(stats$bytes <- 1, silent = TRUE), "try-error"))
}

# Lists are row by row, and of numbers.
parts$lists <- function(comm) {
  buffer <- made(comm, c(2, 3))$buffer
  matrix <- matrix(1:6, 2, 3)
  refused("values has 2 dimensions", function() Buffer_write(buffer, 0, matrix))
  refused("as.numeric(aperm(x))", function() Comm_all_reduce(comm, array(0, c(2, 1, 2)), "SUM"))
  Buffer_write(buffer, 0, as.numeric(t(matrix)))
  stopifnot(identical(Buffer_read(buffer, 0), c(1, 3, 5, 2, 4, 6)))
  for (none in list(c("1", "x"), factor(1:6), list(1, "x"), 1i)) {
    refused("it must be a vector of numbers", function() Buffer_write(buffer, 0, none))
  }
  stopifnot(length(Comm_all_reduce(comm, NULL, "SUM")) == 0, identical(Comm_all_reduce(comm, 3L, "AVG"), 3))
}

# 64 bits in and out; what is no whole number, or too large, is refused.
parts$numbers <- function(comm) {
  model <- made(comm, 3)
  counts <- list(0.9, 2.9, NA, NA_integer_, NaN, Inf, 2^54, "1", NULL, c(1, 2), numeric(0), factor(1))
  for (count in counts) {
    refused("taken of Optimizer_set_steps is", function() Optimizer_set_steps(model$optimizer, count))
    refused("it must be one whole number from -2^31", function() Comm_broadcast(comm, 1, count))
  }
  refused("root of Comm_broadcast is 2147483648", function() Comm_broadcast(comm, 1, 2^31))
  for (count in c(2^31, 2^40 + 1, 2^53)) {
    Optimizer_set_steps(model$optimizer, count)
    stopifnot(identical(Optimizer_steps(model$optimizer, 0L), count))
  }
  options <- OptimizerOptions()
  options$seed <- 2^33 + 1
  stopifnot(identical(options$seed, 2^33 + 1))
  options$lr <- 1L
  stopifnot(identical(options$lr, 1))
  seed <- Grid_seed(Grid_create(comm, GridOptions()), 2^33 + 1, "TENSOR")
  stopifnot(is.double(seed), !is.na(seed))
}

# One text, all of it; and "~" as elsewhere in R.
parts$texts <- function(comm) {
  model <- made(comm, 3)
  options <- CheckpointOptions()
  refused("name of new_Param is a vector of length 2; it must be one text", function() Param(c("w", "v")))
  refused("name of Buffer_find is NA", function() Buffer_find(model$buffer, NA_character_))
  refused("rank_data of CheckpointOptions_rank_data_set is of type raw", function() options$rank_data <- serialize(1:3, NULL))
  refused("rawToChar(serialize(x, NULL, ascii = TRUE))", function() options$shared_data <- as.raw(1:3))
  for (none in list(NULL, 58, TRUE, character(0), list("a"), factor("a"))) {
    refused("name of new_Param is ", function() Param(none))
  }
  options$rank_data <- rawToChar(serialize(list(epoch = 3), NULL, ascii = TRUE))
  home <- Sys.getenv("MEGADP_CHECKPOINTS")
  Sys.setenv(HOME = home)
  Checkpoint_save("~/run", model$buffer, model$optimizer, options)
  stopifnot(dir.exists(file.path(home, "run")))
  stopifnot(identical(unserialize(charToRaw(Checkpoint_data("~/run", 0))), list(epoch = 3)))
  Checkpoint_export_model("~/run", "~/model.safetensors", 0)
  stopifnot(file.exists(file.path(home, "model.safetensors")))
}

part <- commandArgs(TRUE)[1]
parts[[part]](Comm_create(CommOptions()))
cat(part, "\n", sep = "")
