// SPDX-License-Identifier: Apache-2.0
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import megadp.Axis;
import megadp.Buffer;
import megadp.BufferOptions;
import megadp.Checkpoint;
import megadp.CheckpointOptions;
import megadp.Comm;
import megadp.CommOptions;
import megadp.Counts;
import megadp.DType;
import megadp.Grid;
import megadp.GridOptions;
import megadp.Library;
import megadp.MegaDPException;
import megadp.Op;
import megadp.Optimizer;
import megadp.OptimizerOptions;
import megadp.Param;
import megadp.ParamGroup;
import megadp.Params;
import megadp.Plan;
import megadp.Request;
import megadp.Rule;
import megadp.Scaling;
import megadp.Sharding;
import megadp.Status;
import megadp.StepOptions;
import megadp.StepReport;
import megadp.View;

/** One case of the failure tests, by name; some want several ranks. Prints what tests/test_java.py compares, and "done" at the end. */
public final class Failures {
  private static final Params TWO = Params.of(Param.of("w", 3, 4), Param.of("b", 4));
  private static final float[] W = new float[12];
  private static final float[] B = {1, 2, 3, 4};

  private interface Call {
    void run() throws Exception;
  }

  private static ByteBuffer memory(int bytes) {
    return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
  }

  private static void check(boolean holds, String what) {
    if (!holds) {
      throw new AssertionError(what);
    }
  }

  private static MegaDPException fails(Status status, Call call, String... words) throws Exception {
    try {
      call.run();
    } catch (MegaDPException error) {
      check(error.is(status), "expected " + status + ", was " + error);
      for (String word : words) {
        check(error.text().contains(word), "'" + word + "' is not in: " + error.text());
      }
      return error;
    }
    throw new AssertionError("no failure; expected " + status);
  }

  static void badArgument() throws Exception {
    try (Comm comm = Comm.create()) {
      CommOptions options = new CommOptions();
      options.setTimeoutSeconds(-1);
      fails(Status.E_INVALID, () -> Comm.create(options), "timeout_seconds", "-1");
      options.setTimeoutSeconds(1);
      options.setId("abc");
      fails(Status.E_INVALID, () -> Comm.create(options), "id", "3 characters");
      check(Comm.uniqueId().length() == 256, "an id has 256 digits");
      Params twice = Params.of(Param.of("b", 4), Param.of("gewicht \ud83d\ude80", 3), Param.of("gewicht \ud83d\ude80", 5));
      MegaDPException error = fails(Status.E_INVALID, () -> Buffer.create(comm, twice), "gewicht \ud83d\ude80");
      check(error.param() == 2, "param " + error.param());
      check(error.rank() == -1 && error.bucket() == -1 && error.operation() == 0, "about nothing else: " + error);
      check(error.code() == -1 && error.getMessage().startsWith("E_INVALID: "), error.getMessage());
      fails(Status.E_INVALID, () -> Buffer.create(comm, Params.of(Param.of("w", 3, -1))), "-1");
      BufferOptions buckets = new BufferOptions();
      buckets.setBucketElements(-5);
      fails(Status.E_INVALID, () -> Buffer.create(comm, TWO, buckets), "bucket_elements", "-5");
      Params big = Params.of(Param.of("w", 1L << 50)); // which no machine has
      BufferOptions anyway = new BufferOptions();
      fails(Status.E_MEMORY, () -> Buffer.create(comm, big, anyway), "MDP_BUFFER_IGNORE_MEMORY");
      anyway.setIgnoreMemory(true);
      fails(Status.E_MEMORY, () -> Buffer.create(comm, big, anyway), "cannot map");
      fails(Status.E_INVALID, () -> comm.allReduce(DType.F32, ByteBuffer.allocate(8), ByteBuffer.allocateDirect(8), Op.SUM), "from", "direct");
      fails(Status.E_INVALID, () -> comm.broadcast(DType.F32, memory(8).asReadOnlyBuffer().order(ByteOrder.nativeOrder()), 0), "to", "read-only");
      fails(Status.E_INVALID, () -> comm.broadcast(DType.F32, ByteBuffer.allocateDirect(8), 0), "to", "byte order, not BIG_ENDIAN");
      fails(Status.E_INVALID, () -> comm.broadcast(DType.F32, memory(8).slice(), 0), "a slice or duplicate needs that anew");
      fails(Status.E_INVALID, () -> comm.broadcast(DType.F32, memory(7), 0), "7 bytes");
      fails(Status.E_INVALID, () -> comm.broadcast(DType.SAME, memory(8), 0), "dtype");
      fails(Status.E_INVALID, () -> Param.of("w\ud83d"), "name", "surrogate");
      fails(Status.E_INVALID, () -> new CheckpointOptions().setRankData("\ude80"), "rank_data", "surrogate");
      fails(Status.E_INVALID, () -> Buffer.create(comm, Params.of(Param.of("a\0b"))), "name", "NUL");
      badStep(comm);
    }
  }

  private static void badStep(Comm comm) throws Exception {
    try (Buffer buffer = Buffer.create(comm, TWO)) {
      fails(Status.E_INVALID, () -> buffer.put(2, B), "param", "2");
      fails(Status.E_INVALID, () -> buffer.ready(-1), "param", "-1");
      MegaDPException error = fails(Status.E_INVALID, () -> buffer.put(1, new float[3]), "'b'");
      check(error.param() == 1, "param " + error.param());
      OptimizerOptions options = new OptimizerOptions();
      options.setLr(-1);
      fails(Status.E_INVALID, () -> Optimizer.create(buffer, options), "lr");
      for (long group : new long[] {1L << 32, -1}) {
        OptimizerOptions beyond = new OptimizerOptions();
        beyond.setFirstParamGroup(group);
        fails(Status.E_INVALID, () -> Optimizer.create(buffer, beyond), "first_param_group", "" + group);
      }
      try (Optimizer optimizer = Optimizer.create(buffer, new OptimizerOptions())) {
        fails(Status.E_INVALID, () -> optimizer.state(0, "momentum"), "name");
        fails(Status.E_INVALID, () -> optimizer.state(0, "exp_avg\0x"), "name", "NUL");
        StepOptions elsewhere = new StepOptions();
        elsewhere.setStream(8);
        fails(Status.E_INVALID, () -> optimizer.step(elsewhere), "stream");
        fails(Status.E_INVALID, () -> buffer.find("v"), "'v'");
        fails(Status.E_INVALID, () -> buffer.find("w\0"), "NUL");
        fails(Status.E_INVALID, () -> comm.worldRank(1), "rank");
        fails(Status.E_INVALID, () -> buffer.broadcast(1), "root");
        buffer.put(1, B);
        check(fails(Status.E_STATE, () -> optimizer.step(), "never became ready").param() == 0, "a step syncs, and finds no gradient");
        buffer.zeroGrad();
        buffer.put(1, new float[] {1, Float.NaN, 3, 4});
        buffer.put(0, W);
        buffer.sync();
        check(fails(Status.E_NUMERIC, () -> optimizer.step()).param() == 1, "the parameter that is not finite");
        buffer.put(1, new float[] {1, Float.NaN, 3, 4});
        buffer.put(0, W);
        buffer.sync();
        StepOptions scaled = new StepOptions();
        scaled.setLossScale(2);
        StepReport report = optimizer.step(scaled);
        check(report.getSkipped() && report.getStep() == 0, "a step with a loss scale is skipped");
        buffer.put(1, B);
        buffer.put(0, W);
        scaled.setUnchecked(true);
        fails(Status.E_INVALID, () -> optimizer.step(scaled), "MDP_STEP_UNCHECKED (2), but config.loss_scale is given");
        scaled.setLossScale(0);
        StepReport unchecked = optimizer.step(scaled);
        check(unchecked.getUnchecked() && Double.isNaN(unchecked.getGradNorm()) && unchecked.getStep() == 1, "a step without a norm");
      }
    }
  }

  /** With two ranks: both are told who has no gradient of what, and the training goes on. */
  static void missingGradient() throws Exception {
    try (Comm comm = Comm.create();
        Buffer buffer = Buffer.create(comm, TWO);
        Optimizer optimizer = Optimizer.create(buffer, new OptimizerOptions())) {
      buffer.put(1, B);
      if (comm.rank() == 0) {
        buffer.put(0, W);
      }
      MegaDPException error = fails(Status.E_STATE, buffer::sync, "'w'");
      System.out.println("refused " + error.param() + " " + error.rank());
      buffer.beginMicrobatch(true);
      buffer.put(1, B);
      buffer.put(0, W);
      buffer.sync();
      System.out.println("stepped " + optimizer.step().getStep());
    }
  }

  /** With two ranks: norms, factors and what is written through views between sync and the step; and each parameter's steps. */
  static void reducedGradients() throws Exception {
    BufferOptions options = new BufferOptions();
    options.setSharding(Sharding.ZERO_0);
    Params three = Params.of(Param.of("w", 4), Param.of("b", 2), Param.of("late", 3));
    long[] w = {0};
    long[] both = {0, 1};
    try (Comm comm = Comm.create();
        Buffer buffer = Buffer.create(comm, three, options);
        Optimizer optimizer = Optimizer.create(buffer, new OptimizerOptions())) {
      Call[] tooEarly = {buffer::gradNorm, () -> buffer.gradNormOf(w), () -> buffer.scaleGrads(1), () -> buffer.scaleGradsOf(1, w),
          buffer::gradsChanged};
      for (Call call : tooEarly) {
        fails(Status.E_STATE, call, "mdp_grad_");
      }
      buffer.put(0, new float[] {2, 2, 2, 2});
      buffer.put(1, new float[] {6 * comm.rank(), 0});
      buffer.skip(2);
      buffer.sync();
      String found = buffer.gradNorm() + " " + buffer.gradNormOf(new long[] {1}) + " " + buffer.gradNormOf(new long[0]);
      buffer.scaleGrads(0.5);
      buffer.scaleGradsOf(3, w);
      buffer.scaleGradsOf(7, new long[0]);
      found += " " + buffer.grad(0).asFloatBuffer().get(3) + " " + buffer.grad(1).asFloatBuffer().get(0);
      buffer.grad(0).asFloatBuffer().put(new float[] {0, 0, 0, 2});
      buffer.gradsChanged();
      found += " " + buffer.gradNormOf(both);
      fails(Status.E_INVALID, () -> buffer.gradNormOf(new long[] {0, 3}), "params", "3");
      fails(Status.E_INVALID, () -> buffer.gradNormOf(new long[] {-1}), "params", "-1");
      fails(Status.E_INVALID, () -> buffer.gradNormOf(new long[] {0, 0}), "'w'");
      fails(Status.E_INVALID, () -> buffer.gradNormOf(null), "params", "null");
      fails(Status.E_INVALID, () -> buffer.scaleGrads(Double.NaN), "factor");
      optimizer.step();
      System.out.println("reduced " + found + " steps " + optimizer.steps(0) + optimizer.steps(1) + optimizer.steps(2));
      optimizer.setSteps(100);
      long before = optimizer.steps(2);
      Counts counts = new Counts();
      for (long steps : new long[] {9, 8, 7}) counts.add(steps);
      optimizer.setStepsOf(9, counts);
      System.out.println("set " + before + " " + optimizer.steps(2) + " " + optimizer.info().substring(0, 25));
      fails(Status.E_INVALID, () -> optimizer.setStepsOf(8, counts), "at most taken");
      fails(Status.E_INVALID, () -> optimizer.setStepsOf(9, new Counts()), "3 numbers");
      fails(Status.E_INVALID, () -> optimizer.setSteps(-1), "-1");
      fails(Status.E_INVALID, () -> optimizer.steps(3), "3");
      fails(Status.E_INVALID, () -> optimizer.steps(-1), "-1");
    }
  }

  /** With two ranks: what is saved comes back, with its steps and data; and what is refused. */
  static void checkpoints() throws Exception {
    String directory = Paths.get(System.getenv("FAILURES_FLAG")).getParent().toString();
    try (Comm comm = Comm.create();
        Buffer buffer = Buffer.create(comm, TWO);
        Optimizer optimizer = Optimizer.create(buffer, new OptimizerOptions())) {
      buffer.write(1, B);
      optimizer.setSteps(5);
      CheckpointOptions options = new CheckpointOptions();
      options.setSharedData("für alle");
      options.setRankData("rank " + comm.rank());
      options.setKeep(1);
      Checkpoint.save(directory, buffer, optimizer, options);
      try (Request writing = Checkpoint.startSave(directory, buffer, optimizer, options)) {
        buffer.write(1, new float[4]);
        writing.await();
      }
      for (boolean paramsOnly : new boolean[] {false, true}) {
        CheckpointOptions how = new CheckpointOptions();
        how.setParamsOnly(paramsOnly);
        how.setOptional("x\ny*");
        buffer.write(1, new float[4]);
        optimizer.setSteps(1);
        Checkpoint.load(directory, buffer, optimizer, how);
        float[] values = new float[4];
        buffer.read(1, values);
        System.out.println("loaded " + Arrays.toString(values) + " " + optimizer.steps(0));
      }
      System.out.println("data " + Checkpoint.info(directory).contains("checkpoint-000002") + " " + Checkpoint.data(directory, 1) + " "
          + Checkpoint.data(directory, -1).equals("für alle"));
      fails(Status.E_INVALID, () -> Checkpoint.data(directory, 2), "rank is 2");
      fails(Status.E_SYSTEM, () -> Checkpoint.info(directory + "/absent"), "absent");
      fails(Status.E_INVALID, () -> Checkpoint.load("a\0b", buffer, optimizer, options), "NUL");
      fails(Status.E_INVALID, () -> Checkpoint.info(null), "directory", "null");
      options.setKeep(-1);
      fails(Status.E_INVALID, () -> Checkpoint.save(directory, buffer, optimizer, options), "keep");
      fails(Status.E_INVALID, () -> Checkpoint.startSave(directory, buffer, optimizer, options), "keep");
      Optimizer closed = Optimizer.create(buffer, new OptimizerOptions());
      closed.close();
      fails(Status.E_STATE, () -> Checkpoint.save(directory, buffer, closed, new CheckpointOptions()), "closed");
    }
  }

  /** With two ranks: what is sent as bf16, a gradient of the last rank that is not finite, and the order in which gradients came. */
  static void checkedGradients() throws Exception {
    BufferOptions options = new BufferOptions();
    options.setScaling(Scaling.SUM);
    options.setWireDtype(DType.BF16);
    options.setErrorFeedback(true);
    options.setCheckFinite(true);
    options.setCheckLarge(true);
    Param first = Param.of("v", 1);
    first.setUseOrder(1);
    StepOptions scaled = new StepOptions();
    scaled.setLossScale(2);
    try (Comm comm = Comm.create();
        Buffer buffer = Buffer.create(comm, Params.of(first, Param.of("u", 1)), options);
        Optimizer optimizer = Optimizer.create(buffer, new OptimizerOptions())) {
      fails(Status.E_STATE, buffer::useOrder, "sync");
      for (float bad : new float[] {1.006f, Float.POSITIVE_INFINITY}) {
        buffer.put(0, new float[] {0});
        buffer.put(1, new float[] {comm.rank() == 0 ? 1.001f : bad});
        String found = "checked";
        if (bad < 2) {
          buffer.sync();
          found += " " + buffer.gradNorm();
        } else {
          fails(Status.E_NUMERIC, buffer::sync, "'u'");
        }
        found += " " + optimizer.step(scaled).getSkipped() + " " + Arrays.toString(buffer.useOrder());
        System.out.println(found + " " + buffer.stats().getLargeGradients());
      }
    }
  }

  /**
   * With two ranks: the same steps with ZERO_1 and with ZERO_2, whose gradients are put and written where they go; and with two optimizer
   * instances.
   */
  static void pooledGradients() throws Exception {
    try (Comm comm = Comm.create()) {
      String expected = pooled(comm, 1, Sharding.ZERO_1, false);
      for (boolean written : new boolean[] {false, true}) {
        check(pooled(comm, 1, Sharding.ZERO_2, written).equals(expected), "the bits of ZERO_1");
        check(pooled(comm, 1, Sharding.ZERO_1, written).equals(expected), "the same bits");
        check(pooled(comm, 2, Sharding.ZERO_2, written).equals(expected), "the bits of one instance");
      }
      comm.barrier();
    }
  }

  private static String pooled(Comm comm, int instances, Sharding sharding, boolean written) throws Exception {
    GridOptions cut = new GridOptions();
    cut.setInstances(instances);
    BufferOptions options = new BufferOptions();
    options.setSharding(sharding);
    options.setBucketElements(1);
    options.setPoolBuckets(sharding == Sharding.ZERO_2 ? 1 : 0);
    StringBuilder found = new StringBuilder();
    try (Grid grid = Grid.create(comm, cut);
        Buffer buffer = Buffer.create(grid, TWO, options);
        Optimizer optimizer = Optimizer.create(buffer, new OptimizerOptions())) {
      for (int step = 0; step < 3; step++) {
        for (int i = 1; i >= 0; i--) {
          float[] grad = new float[i == 0 ? 12 : 4];
          for (int k = 0; k < grad.length; k++) {
            grad[k] = (float) Math.sin(1 + 7 * k + 31 * i + 57 * step + 91 * comm.rank()) / 3;
          }
          if (written) {
            View lent = buffer.acquire(i);
            check(lent.first() && lent.size() == grad.length, "all of a first gradient is lent");
            lent.memory().asFloatBuffer().put(grad);
            buffer.ready(i);
          } else {
            buffer.put(i, grad);
          }
        }
        buffer.sync();
        double[] owned = {buffer.ownedGradView(0).size() + buffer.ownedGrad(1).asFloatBuffer().remaining()};
        comm.allReduce(owned, Op.SUM);
        check(owned[0] == 16 * instances, "all is owned: " + owned[0]);
        optimizer.step();
      }
      for (int i = 0; i < 2; i++) {
        float[] values = new float[i == 0 ? 12 : 4];
        buffer.read(i, values);
        for (float value : values) {
          found.append(' ').append(Float.floatToIntBits(value));
        }
      }
      check(buffer.stats().getSpillPeakBytes() >= 0, "bytes outside the pool");
    }
    return found.toString();
  }

  /** With two ranks: after a step views are of what it leaves, also those that are kept; after one that goes on, those that are asked for. */
  static void viewsAfterStep() throws Exception {
    int count = 1 << 21;
    OptimizerOptions sgd = new OptimizerOptions();
    sgd.setRule(Rule.SGD);
    sgd.setLr(1);
    for (boolean kept : new boolean[] {false, true}) {
      for (Sharding sharding : new Sharding[] {Sharding.ZERO_0, Sharding.ZERO_1}) {
        BufferOptions options = new BufferOptions();
        options.setSharding(sharding);
        try (Comm comm = Comm.create();
            Buffer buffer = Buffer.create(comm, Params.of(Param.of("w", count)), options);
            Optimizer optimizer = Optimizer.create(buffer, sgd)) {
          viewsOfSteps(buffer, optimizer, count, kept);
        }
      }
    }
  }

  private static void viewsOfSteps(Buffer buffer, Optimizer optimizer, int count, boolean kept) {
    FloatBuffer gradient = buffer.grad(0).asFloatBuffer();
    FloatBuffer values = buffer.param(0).asFloatBuffer();
    float[] grad = new float[count];
    float sum = 0;
    for (int step = 1; step <= 10; step++) {
      Arrays.fill(grad, -step);
      sum += step;
      (kept ? gradient.duplicate() : buffer.grad(0).asFloatBuffer()).put(grad);
      buffer.ready(0);
      if (kept) {
        optimizer.step();
      } else {
        optimizer.startStep(new StepOptions()).close();
      }
      if (step % 2 == 0) {
        FloatBuffer now = kept ? values : buffer.param(0).asFloatBuffer();
        for (int i = 0; i < count; i += 512) {
          check(now.get(i) == sum, "element " + i + " is " + now.get(i) + " after " + step + " steps, not " + sum);
        }
      }
    }
    float[] found = new float[count];
    buffer.read(0, found);
    for (float value : found) {
      check(value == sum, "an element is " + value + ", not " + sum);
    }
  }

  /** What is lent, and what is refused meanwhile and after it was given back. */
  static void lentGradient() throws Exception {
    BufferOptions options = new BufferOptions();
    options.setSharding(Sharding.ZERO_2);
    options.setBucketElements(1);
    options.setPoolBuckets(1);
    options.setSpillLimit(20);
    try (Comm comm = Comm.create(); Buffer buffer = Buffer.create(comm, TWO, options)) {
      View lent = buffer.acquire(1);
      Call[] calls = {() -> buffer.put(1, B), () -> buffer.skip(1), () -> buffer.acquire(1), () -> buffer.beginMicrobatch(true)};
      for (Call call : calls) {
        check(fails(Status.E_STATE, call, "is lent").param() == 1, "the parameter");
      }
      fails(Status.E_STATE, () -> buffer.release(0), "not lent");
      fails(Status.E_INVALID, () -> buffer.acquire(2), "param", "2");
      fails(Status.E_INVALID, () -> buffer.release(-1), "param", "-1");
      fails(Status.E_STATE, () -> buffer.ownedGrad(0), "mdp_grad_sync");
      fails(Status.E_UNSUPPORTED, () -> buffer.grad(1), "mdp_grad_acquire");
      fails(Status.E_MEMORY, () -> buffer.put(0, W), "spill_limit is 20");
      buffer.release(1);
      fails(Status.E_STATE, lent::memory, "given back");
      buffer.acquire(1);
      fails(Status.E_STATE, buffer::sync, "is lent");
      fails(Status.E_STATE, () -> buffer.beginMicrobatch(true), "is lent");
      buffer.release(1);
      buffer.beginMicrobatch(true);
      View again = buffer.acquire(1);
      fails(Status.E_STATE, lent::memory, "given back");
      again.memory().asFloatBuffer().put(B);
      buffer.ready(1);
      options.setPoolBuckets(-1);
      fails(Status.E_INVALID, () -> Buffer.create(comm, TWO, options), "pool_buckets", "-1");
    }
  }

  /** With three ranks, one of which dies: the others are told, long before the timeout, in calls of every kind. */
  static void killedPeer() throws Exception {
    CommOptions options = new CommOptions();
    options.setTimeoutSeconds(200);
    options.setSockets(true);
    Comm comm = Comm.create(options);
    Buffer buffer = Buffer.create(comm, TWO);
    ByteBuffer view = buffer.param(1);  // from here on only calls that must be told: rank 1 may be dead before the others come to them
    if (comm.rank() == 1) {
      String self = Files.readSymbolicLink(Paths.get("/proc/self")).toString();
      new ProcessBuilder("kill", "-KILL", self).start().waitFor();
      Thread.sleep(Long.MAX_VALUE);
    }
    Call[] calls = {buffer::sync, comm::barrier, () -> comm.allReduce(new float[] {1}, Op.SUM), () -> comm.split(0, 0),
        () -> Grid.create(comm, new GridOptions())};
    for (Call call : calls) {
      System.out.println("told " + fails(Status.E_PEER, call, "rank 1").rank());
    }
    MegaDPException lost = comm.lost();
    System.out.println("kept " + lost.is(Status.E_PEER) + " " + lost.rank());
    check(view.asFloatBuffer().get(3) == 0 && buffer.ownedCount() >= 0, "local memory stays readable");
  }

  static void useAfterClose() throws Exception {
    Comm comm = Comm.create();
    Grid grid = Grid.create(comm, new GridOptions());
    Buffer buffer = Buffer.create(grid, TWO, new BufferOptions());
    Optimizer optimizer = Optimizer.create(buffer, new OptimizerOptions());
    check(comm.lost() == null, "nothing is lost");
    AutoCloseable[] all = {comm, grid, buffer, optimizer};
    FloatBuffer view = buffer.param(1).asFloatBuffer();
    FloatBuffer state = optimizer.state(1, "exp_avg").asFloatBuffer();
    for (AutoCloseable one : all) {
      one.close();
      one.close();
    }
    check(comm.closed() && grid.closed() && buffer.closed() && optimizer.closed(), "all are closed");
    Call[] calls = {comm::barrier, comm::startBarrier, comm::rank, () -> comm.worldRank(0), comm::abort, comm::lost, comm::eventFd, () -> comm.split(0, 0),
        () -> comm.allReduce(new double[] {1}, Op.SUM), () -> Grid.create(comm, new GridOptions()), () -> grid.comm(Axis.DP.swigValue()),
        () -> grid.index(Axis.DP.swigValue()), () -> Buffer.create(comm, TWO), buffer::sync, buffer::startSync, buffer::awaitAll,
        () -> buffer.broadcast(0), () -> buffer.startBroadcast(0), () -> buffer.find("w"), buffer::buckets,
        buffer::zeroGrad, buffer::gradNorm, () -> buffer.gradNormOf(new long[0]), () -> buffer.scaleGrads(1),
        () -> buffer.scaleGradsOf(1, new long[0]), buffer::gradsChanged, () -> optimizer.steps(0), buffer::stats, buffer::ownedCount, buffer::changed, () -> buffer.param(0), () -> buffer.grad(0),
        () -> buffer.acquire(0), () -> buffer.release(0), () -> buffer.ready(0), () -> buffer.ownedGrad(0),
        () -> buffer.put(1, B), () -> buffer.read(1, new float[4]), () -> buffer.bucket(0),
        () -> Optimizer.create(buffer, new OptimizerOptions()), () -> optimizer.step(), () -> optimizer.state(0, "exp_avg"),
        () -> optimizer.startStep(new StepOptions())};
    for (Call call : calls) {
      fails(Status.E_STATE, call, "is closed");
    }
    view.put(3, 5);
    state.put(1, 6);
    check(view.get(3) == 5 && state.get(1) == 6, "views outlive what they were taken from");
  }

  /** Objects and views that nobody closes: collected while others work, in any order, and the memory of a view only with the view. */
  static void collected() throws Exception {
    FloatBuffer kept = null;
    for (int round = 0; round < 20; round++) {
      Comm comm = Comm.create();
      Buffer buffer = Buffer.create(comm, TWO);
      Optimizer optimizer = Optimizer.create(buffer, new OptimizerOptions());
      FloatBuffer part = buffer.param(1).asFloatBuffer();
      part.put(2, round);
      buffer.changed();
      buffer.put(0, W);
      buffer.put(1, B);
      Request request = buffer.startSync();
      request.await();
      optimizer.step();
      buffer.awaitAll();
      System.gc();
      kept = part;
    }
    System.gc();
    System.gc();
    check(Math.abs(kept.get(2) - 19) < 0.1, "the last view holds its value, a step later: " + kept.get(2));
    kept.put(2, 7);
    check(kept.get(2) == 7, "and can be written");
  }

  /** A thread that waits can be interrupted; the operation goes on, and so can the wait. With two ranks. */
  static void interrupted() throws Exception {
    try (Comm comm = Comm.create(); Buffer buffer = Buffer.create(comm, TWO)) {
      buffer.put(0, W);
      buffer.put(1, B);
      if (comm.rank() == 0) {
        Thread.currentThread().interrupt();
        try (Request request = buffer.startSync()) {
          request.await();
          throw new AssertionError("not interrupted"); // the other rank comes only after the next line
        } catch (InterruptedException expected) {
          System.out.println("interrupted");
        }
        Files.createFile(Paths.get(System.getenv("FAILURES_FLAG")));
      } else {
        while (!Files.exists(Paths.get(System.getenv("FAILURES_FLAG")))) {
          Thread.sleep(5);
        }
      }
      buffer.sync();
      System.out.println("synced");
      if (comm.rank() == 0) {
        interruptedInBarrier(comm); // the other rank comes only after the next lines
        System.out.println("interrupted");
        Files.delete(Paths.get(System.getenv("FAILURES_FLAG")));
      } else {
        while (Files.exists(Paths.get(System.getenv("FAILURES_FLAG")))) {
          Thread.sleep(5);
        }
      }
      comm.barrier(); // goes on with the same one
      try (Request request = comm.startBarrier()) { // so that this is the second on both ranks
        request.await();
      }
      System.out.println("passed");
      left(comm);
    }
  }

  static void interruptedInBarrier(Comm comm) {
    Thread.currentThread().interrupt();
    try {
      comm.barrier();
      throw new AssertionError("not interrupted");
    } catch (InterruptedException expected) {
      return;
    }
  }

  /** After another operation a barrier is a new one, whatever rank 0's thread was interrupted in. */
  static void left(Comm comm) throws Exception {
    java.nio.file.Path flag = Paths.get(System.getenv("FAILURES_FLAG"));
    if (comm.rank() == 0) {
      interruptedInBarrier(comm); // the other rank comes only after the next line
      Files.createFile(flag);
    } else {
      while (!Files.exists(flag)) {
        Thread.sleep(5);
      }
      comm.barrier();
    }
    comm.allReduce(new float[] {1}, Op.SUM);
    if (comm.rank() == 1) {
      Thread.sleep(200);
      Files.delete(flag);
    }
    comm.barrier();
    check(!Files.exists(flag), "the barrier is over when both ranks have come");
  }

  /** With three ranks: parts and their numbers in the world, and a buffer on a part, whose names and values are its own. */
  static void cut() throws Exception {
    try (Comm comm = Comm.create();
        Comm part = comm.split(comm.rank() % 2, -comm.rank());
        Buffer buffer = Buffer.create(part, TWO)) {
      StringBuilder members = new StringBuilder();
      for (int i = 0; i < part.size(); i++) {
        members.append(part.worldRank(i));
      }
      long place = buffer.find("b");
      float[] values = new float[4];
      java.util.Arrays.fill(values, comm.rank());
      buffer.write(place, values);
      buffer.broadcast(0);
      buffer.read(place, values);
      try (Request request = buffer.startBroadcast(part.size() - 1)) {
        request.await();
      }
      buffer.verify();
      comm.barrier();
      System.out.println("part " + members + " b " + place + " buckets " + buffer.buckets() + " value " + values[3]);
    }
  }

  /** What is given is meant literally, and what is not is the optimizer's. Steps sync by themselves. */
  static void givenValues() throws Exception {
    Params params = new Params();
    for (int i = 0; i < 3; i++) {
      Param param = Param.of("p" + i);
      param.setParamGroup(i);
      params.add(param);
    }
    OptimizerOptions decay = new OptimizerOptions();
    decay.setLr(0.5);
    decay.setWeightDecay(0.5);
    OptimizerOptions still = new OptimizerOptions();
    still.setLr(0);
    still.setBeta1(0);
    still.setBeta2(0);
    ParamGroup[] groups = {new ParamGroup(), new ParamGroup(), new ParamGroup()};
    groups[1].setWeightDecay(0);
    groups[2].setWeightDecay(0.25);
    for (ParamGroup group : groups) {
      decay.addParamGroup(group);
      still.addParamGroup(group);
    }
    try (Comm comm = Comm.create();
        Buffer buffer = Buffer.create(comm, params);
        Optimizer decaying = Optimizer.create(buffer, decay);
        Optimizer standing = Optimizer.create(buffer, still)) {
      for (int i = 0; i < 3; i++) {
        buffer.write(i, new float[] {1});
        buffer.put(i, new float[] {0});
      }
      decaying.step();
      float[] value = new float[1];
      for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) {
          buffer.read(i, value);
          System.out.print(value[0] + " ");
          buffer.put(i, new float[] {3});
        }
        standing.step();
      }
      System.out.println("moments " + standing.state(0, "exp_avg").asFloatBuffer().get(0) + " "
          + standing.state(0, "exp_avg_sq").asFloatBuffer().get(0));
      decaying.setParamGroup(2, groups[1]);
    }
  }

  private static long stateBytes(String layout) {
    return Long.parseLong(layout.replaceFirst(".*\"state\":(\\d+).*", "$1"));
  }

  /** What needs no ranks. */
  static void plans() throws Exception {
    BufferOptions options = new BufferOptions();
    options.setSharding(Sharding.ZERO_0);
    String layout = Plan.layout(new GridOptions(), 2, options, TWO);
    check(layout.contains("\"numel\"") && layout.startsWith("{") && layout.endsWith("}"), layout);
    OptimizerOptions lion = new OptimizerOptions();
    lion.setRule(Rule.LION);
    lion.setBf16State(true);
    String smaller = Plan.layoutWith(new GridOptions(), 2, options, TWO, lion);
    check(stateBytes(layout) >= 8 * 16 && stateBytes(layout) == 4 * stateBytes(smaller), smaller);
    lion.setFirstParamGroup(0);
    fails(Status.E_INVALID, () -> Plan.layoutWith(new GridOptions(), 2, options, TWO, lion), "SOME_GROUPS");
    GridOptions grid = new GridOptions();
    grid.setTp(2);
    String groups = Plan.groups(grid, 4, Axis.DP.swigValue());
    check(groups.replace(" ", "").equals("[[0,2],[1,3]]"), groups);
    check(Library.info().contains("\"version\"") && Library.version() > 0, "information");
    grid.setOrder("tp-tp");
    check(grid.getOrder().equals("tp-tp"), grid.getOrder());
  }

  public static void main(String[] arguments) throws Throwable {
    try {
      Failures.class.getDeclaredMethod(arguments[0]).invoke(null);
    } catch (java.lang.reflect.InvocationTargetException error) {
      throw error.getCause();
    }
    System.out.println("done");
  }
}
