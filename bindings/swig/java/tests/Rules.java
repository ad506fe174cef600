// SPDX-License-Identifier: Apache-2.0
import java.nio.file.Paths;
import megadp.Buffer;
import megadp.Checkpoint;
import megadp.CheckpointOptions;
import megadp.Comm;
import megadp.Optimizer;
import megadp.OptimizerOptions;
import megadp.Optimizers;
import megadp.Param;
import megadp.ParamGroup;
import megadp.Params;
import megadp.Request;
import megadp.Rule;
import megadp.Scaler;
import megadp.Status;
import megadp.StepOptions;
import megadp.StepReport;

/** Rules against their formulas in float64, two optimizers in a step, a loss scaler, and what is refused; on one rank or two. */
public final class Rules {
  private static final double RATE = 0.125;
  private static final double DECAY = 0.25;
  private static final double BETA1 = 0.5;
  private static final double BETA2 = 0.75;
  private static final double EPS = 1e-3;
  private static final double MOMENTUM = 0.75;
  private static final int STEPS = 6;

  private Rules() {}

  private static boolean isAdam(Rule rule) {
    return rule == Rule.ADAMW || rule == Rule.ADAM;
  }

  private static boolean hasMomentum(Rule rule) {
    return rule == Rule.SGD_MOMENTUM || rule == Rule.SGD_NESTEROV;
  }

  private static double gradient(int step) {
    return Math.sin(2 * step) + 0.25;
  }

  /** A parameter that began as 1 after all steps, and what the rule keeps of it. */
  private static double[] after(Rule rule) {
    double w = 1;
    double m = 0;
    double v = 0;
    for (int step = 1; step <= STEPS; step++) {
      double g = gradient(step);
      boolean decoupled = rule == Rule.ADAMW || rule == Rule.LION;
      g += decoupled ? 0 : DECAY * w;
      w *= decoupled ? 1 - RATE * DECAY : 1;
      if (isAdam(rule)) {
        m = BETA1 * m + (1 - BETA1) * g;
        v = BETA2 * v + (1 - BETA2) * g * g;
        w -= RATE * m / (1 - Math.pow(BETA1, step)) / (Math.sqrt(v / (1 - Math.pow(BETA2, step))) + EPS);
      } else if (rule == Rule.LION) {
        w -= RATE * Math.signum(BETA1 * m + (1 - BETA1) * g);
        m = BETA2 * m + (1 - BETA2) * g;
      } else {
        m = MOMENTUM * m + g;
        w -= RATE * (rule == Rule.SGD ? g : rule == Rule.SGD_MOMENTUM ? m : g + MOMENTUM * m);
      }
    }
    return new double[] {w, m, v};
  }

  private static OptimizerOptions told(Rule rule) {
    OptimizerOptions options = new OptimizerOptions();
    options.setRule(rule);
    options.setLr(RATE);
    options.setWeightDecay(DECAY);
    if (isAdam(rule) || rule == Rule.LION) {
      options.setBeta1(BETA1);
      options.setBeta2(BETA2);
    }
    if (isAdam(rule)) {
      options.setEps(EPS);
    }
    if (hasMomentum(rule)) {
      options.setMomentum(MOMENTUM);
    }
    return options;
  }

  /** The same for a group of an optimizer that was told nothing. */
  private static OptimizerOptions toldInGroups(Rule rule) {
    OptimizerOptions options = new OptimizerOptions();
    options.setRule(rule);
    for (int i = 0; i < 2; i++) {
      ParamGroup group = new ParamGroup();
      group.setLr(RATE);
      group.setWeightDecay(DECAY);
      if (isAdam(rule) || rule == Rule.LION) {
        group.setBeta1(BETA1);
        group.setBeta2(BETA2);
      }
      if (isAdam(rule)) {
        group.setEps(EPS);
      }
      if (hasMomentum(rule)) {
        group.setMomentum(MOMENTUM);
      }
      options.addParamGroup(group);
    }
    return options;
  }

  private static Buffer twoGroups(Comm comm) {
    Param second = Param.of("v");
    second.setParamGroup(1);
    Buffer buffer = Buffer.create(comm, Params.of(Param.of("w"), second));
    buffer.write(0, new float[] {1});
    buffer.write(1, new float[] {1});
    return buffer;
  }

  private static void put(Buffer buffer, double gradient) {
    buffer.put(1, new float[] {(float) gradient});
    buffer.put(0, new float[] {(float) gradient});
  }

  private static void check(Buffer buffer, Optimizer optimizer, int param, Rule rule) {
    double[] expected = after(rule);
    float[] found = new float[1];
    buffer.read(param, found);
    Checks.check(Math.abs(found[0] - expected[0]) < 1e-5, rule + ": " + found[0] + "; expected " + expected[0]);
    String[] kept = isAdam(rule) ? new String[] {"exp_avg", "exp_avg_sq"}
        : rule == Rule.LION ? new String[] {"exp_avg"} : hasMomentum(rule) ? new String[] {"momentum_buffer"} : new String[0];
    for (int i = 0; i < kept.length; i++) {
      java.nio.FloatBuffer state = optimizer.state(param, kept[i]).asFloatBuffer();
      Checks.check(state.remaining() == 0 || Math.abs(state.get(0) - expected[i + 1]) < 1e-5, rule + ": " + kept[i]);
    }
    if (kept.length == 0) {
      Checks.fails(Status.E_INVALID, () -> optimizer.state(param, "exp_avg"), "name is 'exp_avg'");
    }
  }

  private static void alone(Comm comm, Rule rule) {
    try (Buffer buffer = twoGroups(comm); Optimizer optimizer = Optimizer.create(buffer, toldInGroups(rule))) {
      for (int step = 1; step <= STEPS; step++) {
        put(buffer, gradient(step));
        optimizer.step();
      }
      check(buffer, optimizer, 0, rule);
      check(buffer, optimizer, 1, rule);
    }
  }

  /** Saved and loaded half-way. */
  private static void together(Comm comm, Rule one, Rule other, String directory) throws Exception {
    OptimizerOptions ofFirst = told(one);
    ofFirst.setFirstParamGroup(0);
    OptimizerOptions ofSecond = told(other);
    ofSecond.setFirstParamGroup(1);
    try (Buffer buffer = twoGroups(comm);
        Optimizer first = Optimizer.create(buffer, ofFirst);
        Optimizer second = Optimizer.create(buffer, ofSecond)) {
      Optimizers both = Optimizers.of(first, second);
      for (int step = 1; step <= STEPS; step++) {
        put(buffer, gradient(step));
        if (step % 2 == 0) {
          try (Request request = both.startStepMany(new StepOptions())) {
            request.await();
          }
        } else {
          Checks.check(both.stepMany(new StepOptions()).getStep() == step, "the step is counted");
        }
        if (step == STEPS / 2) {
          Checkpoint.saveMany(directory, buffer, both, new CheckpointOptions());
          try (Request writing = Checkpoint.startSaveMany(directory, buffer, both, new CheckpointOptions())) {
            writing.await();
          }
          buffer.write(0, new float[] {9});
          second.setSteps(7);
          Checkpoint.loadMany(directory, buffer, both, new CheckpointOptions());
        }
      }
      check(buffer, first, 0, one);
      check(buffer, second, 1, other);
    }
  }

  private static void refused(Comm comm) {
    try (Buffer buffer = twoGroups(comm)) {
      OptimizerOptions momentum = new OptimizerOptions();
      momentum.setMomentum(0);
      Checks.fails(Status.E_INVALID, () -> Optimizer.create(buffer, momentum), "AdamW has none");
      OptimizerOptions some = new OptimizerOptions();
      some.setFirstParamGroup(0);
      Optimizer first = Optimizer.create(buffer, some);
      put(buffer, 1);
      Checks.fails(Status.E_INVALID, () -> new Optimizers().stepMany(new StepOptions()), "give at least one");
      Checks.fails(Status.E_INVALID, () -> Optimizers.of(first).stepMany(new StepOptions()), "'v' is in parameter group 1");
      Checks.fails(Status.E_INVALID, () -> Optimizers.of(first, first).stepMany(new StepOptions()), "which both");
      Optimizers closed = Optimizers.of(first);
      first.close();
      Checks.fails(Status.E_STATE, () -> closed.stepMany(new StepOptions()), "this Optimizer is closed");
    }
  }

  private static void scaler(Comm comm) throws Exception {
    OptimizerOptions options = new OptimizerOptions();
    options.setRule(Rule.SGD);
    try (Buffer buffer = Buffer.create(comm, Params.of(Param.of("w"))); Optimizer optimizer = Optimizer.create(buffer, options)) {
      Checks.fails(Status.E_STATE, optimizer::scaler, "no loss scaler");
      Checks.fails(Status.E_STATE, optimizer::scale, "no loss scaler");
      Scaler scaler = new Scaler();
      scaler.setHysteresis(-1);
      Checks.fails(Status.E_INVALID, () -> optimizer.setScaler(scaler), "hysteresis");
      scaler.setHysteresis(2);
      scaler.setScale(1024);
      scaler.setGrowthInterval(3);
      optimizer.setScaler(scaler);
      StringBuilder scales = new StringBuilder();
      for (char kind : "x.xx...x".toCharArray()) {
        boolean overflows = kind == 'x' && comm.rank() == 0;
        buffer.put(0, new float[] {overflows ? Float.POSITIVE_INFINITY : (float) optimizer.scale()});
        StepReport report = optimizer.step();
        Checks.check(report.getSkipped() == (kind == 'x'), "an overflow skips the step");
        Checks.check(optimizer.scaleView().memory().asFloatBuffer().get(0) == optimizer.scale(), "the scale where it lies");
        scales.append(' ').append((int) optimizer.scale());
      }
      Checks.check(optimizer.scaler().getOverflows() == 1 && optimizer.scaler().getCleanSteps() == 0, "what it counts");
      System.out.println("scales" + scales);
      optimizer.removeScaler();
      buffer.put(0, new float[] {Float.NaN});
      Checks.fails(Status.E_NUMERIC, optimizer::step, "");
    }
  }

  private static void averages(Comm comm) throws Exception {
    OptimizerOptions options = new OptimizerOptions();
    options.setRule(Rule.SGD);
    options.setLr(1);
    options.setAverageDecay(0.75);
    try (Buffer buffer = Buffer.create(comm, Params.of(Param.of("w"))); Optimizer optimizer = Optimizer.create(buffer, options)) {
      buffer.put(0, new float[] {-4});
      optimizer.step();
      optimizer.swapAverage();
      buffer.awaitAll();
      Checks.check(buffer.param(0).asFloatBuffer().get(0) == 1, "the average in the parameter's place");
      Checks.fails(Status.E_STATE, optimizer::step, "swap them back first");
      optimizer.swapAverage();
      Checks.check(buffer.param(0).asFloatBuffer().get(0) == 4, "the parameter in its own");
      Checks.check(optimizer.state(0, "average").remaining() <= 4, "the owned average");
    }
  }

  public static void main(String[] arguments) throws Exception {
    String directory = Paths.get(System.getenv("FAILURES_FLAG")).getParent().toString();
    try (Comm comm = Comm.create()) {
      // The caller's has no formula: CallersRule.java.
      Rule[] rules = java.util.Arrays.stream(Rule.values()).filter(rule -> rule != Rule.CALLER).toArray(Rule[]::new);
      for (int i = 0; i < rules.length; i++) {
        alone(comm, rules[i]);
        together(comm, rules[i], rules[(i + 2) % rules.length], directory);
      }
      refused(comm);
      scaler(comm);
      averages(comm);
      comm.barrier();
    }
    System.out.println("as the formulas");
  }
}
