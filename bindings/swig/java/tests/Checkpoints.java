// SPDX-License-Identifier: Apache-2.0
import java.nio.FloatBuffer;
import java.nio.file.Paths;
import java.util.Arrays;
import megadp.Buffer;
import megadp.BufferOptions;
import megadp.Checkpoint;
import megadp.CheckpointOptions;
import megadp.CheckpointParts;
import megadp.Comm;
import megadp.DType;
import megadp.Optimizer;
import megadp.OptimizerOptions;
import megadp.Param;
import megadp.Params;
import megadp.Request;
import megadp.Rule;
import megadp.Sharding;
import megadp.Status;
import megadp.View;

/** On one rank or more: two buffers, one of them with two optimizers, and arrays of this program's own in one checkpoint; and what is refused. */
public final class Checkpoints {
  private Checkpoints() {}

  private static Optimizer optimizer(Buffer buffer, Rule rule, int group) {
    OptimizerOptions options = new OptimizerOptions();
    options.setRule(rule);
    options.setFirstParamGroup(group);
    return Optimizer.create(buffer, options);
  }

  /** What a program has: so that everything in it, but for the counts, is a number that `value` makes. */
  private static final class Program implements AutoCloseable {
    final Buffer encoder;
    final Buffer decoder;
    final Optimizer adamw;
    final Optimizer sgd;
    final CheckpointParts parts = new CheckpointParts();
    final FloatBuffer mean;
    final View seen;

    Program(Comm comm, Sharding sharding) {
      BufferOptions options = new BufferOptions();
      options.setSharding(sharding);
      Param bias = Param.of("bias", 2);
      bias.setParamGroup(1);
      encoder = Buffer.create(comm, Params.of(Param.of("weight", 3), bias), options);
      decoder = Buffer.create(comm, Params.of(Param.of("head", 2)), options);
      adamw = optimizer(encoder, Rule.ADAMW, 0);
      sgd = optimizer(encoder, Rule.SGD_MOMENTUM, 1);
      parts.add(encoder, adamw);
      parts.add(encoder, sgd);
      parts.addBuffer(decoder);
      mean = parts.addTensor(Param.of("norm.mean", 2, 2)).memory().asFloatBuffer();
      Param counted = Param.of("norm.batches");
      counted.setDtype(DType.I64);
      seen = parts.addTensor(counted);
    }

    void set(float value) {
      encoder.write(0, new float[] {value, value, value});
      encoder.write(1, new float[] {value + 1, value + 1});
      decoder.write(0, new float[] {value + 2, value + 2});
      adamw.setSteps((long) value);
      sgd.setSteps((long) value + 1);
      mean.put(3, value + 3);
      seen.memory().asLongBuffer().put(0, (long) value + (1L << 40));
    }

    String told() {
      float[] weight = new float[3];
      float[] head = new float[2];
      encoder.read(0, weight);
      decoder.read(0, head);
      return Arrays.toString(weight) + " " + Arrays.toString(head) + " " + adamw.steps(0) + " " + sgd.steps(1) + " " + mean.get(3) + " "
          + (seen.memory().asLongBuffer().get(0) - (1L << 40));
    }

    @Override
    public void close() {
      adamw.close();
      sgd.close();
      encoder.close();
      decoder.close();
    }
  }

  public static void main(String[] arguments) throws Exception {
    String directory = Paths.get(System.getenv("FAILURES_FLAG")).getParent().toString();
    CheckpointOptions options = new CheckpointOptions();
    try (Comm comm = Comm.create(); Program saved = new Program(comm, Sharding.ZERO_1); Program loaded = new Program(comm, Sharding.ZERO_2)) {
      saved.set(7);
      saved.parts.save(directory, options);
      saved.set(20);
      try (Request writing = saved.parts.startSave(directory, options)) {
        saved.set(30); // which is not in it
        writing.await();
      }
      loaded.set(1);
      loaded.parts.load(directory, options);
      Checks.check(loaded.told().equals("[20.0, 20.0, 20.0] [22.0, 22.0] 20 21 23.0 20"), loaded.told());
      loaded.parts.load(directory + "/checkpoint-000001", options);
      System.out.println("loaded " + loaded.told());
      Checks.check(Checkpoint.info(directory).contains("norm.mean"), "a tensor is told");

      Checks.fails(Status.E_INVALID, () -> Checkpoint.load(directory, saved.encoder, saved.adamw, options), "'");
      Checks.fails(Status.E_INVALID, () -> new CheckpointParts().save(directory, options), "part_count");
      Checks.fails(Status.E_INVALID, () -> saved.parts.addTensor(Param.of("x", -2)), "-2");
      Checks.fails(Status.E_INVALID, () -> saved.parts.addTensor(Param.of("x", 1L << 40, 1L << 40)), "too large");
      Checks.fails(Status.E_INVALID, () -> saved.parts.addTensor(Param.of("a\0b")), "NUL");
      Checks.fails(Status.E_INVALID, () -> saved.parts.save("a\0b", options), "NUL");
      CheckpointParts twice = new CheckpointParts();
      twice.addBuffer(saved.decoder);
      twice.addTensor(Param.of("head", 2));
      Checks.fails(Status.E_INVALID, () -> twice.save(directory, options), "two arrays are called 'head'");
      loaded.sgd.close();
      Checks.fails(Status.E_STATE, () -> loaded.parts.load(directory, options), "this Optimizer is closed");
      loaded.decoder.close();
      Checks.fails(Status.E_STATE, () -> loaded.parts.startSave(directory, options), "closed");
      comm.barrier();
    }
  }
}
