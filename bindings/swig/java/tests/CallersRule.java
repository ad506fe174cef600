// SPDX-License-Identifier: Apache-2.0
import java.nio.ByteBuffer;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import megadp.Buffer;
import megadp.BufferOptions;
import megadp.Comm;
import megadp.Counts;
import megadp.DType;
import megadp.Optimizer;
import megadp.OptimizerOptions;
import megadp.Optimizers;
import megadp.Param;
import megadp.ParamGroup;
import megadp.Params;
import megadp.Rule;
import megadp.Sharding;
import megadp.Status;
import megadp.Step;
import megadp.StepOptions;
import megadp.StepReport;
import megadp.UpdatePiece;

/**
 * AdamW written here gives the library's bits, by itself and beside the library's in one step; failures, and what is refused; what a rule keeps of
 * whole parameters in bytes; on 1 rank or 2.
 */
public final class CallersRule {
  private static final int STEPS = 10;
  private static final int[] LENGTHS = {301, 200};

  private CallersRule() {}

  /** With values that all ranks know; the second parameter is BF16. */
  private static Buffer buffer(Comm comm) {
    Param second = Param.of("b", LENGTHS[1]);
    second.setDtype(DType.BF16);
    second.setParamGroup(1);
    BufferOptions options = new BufferOptions();
    options.setBucketElements(100);
    Buffer buffer = Buffer.create(comm, Params.of(Param.of("a", LENGTHS[0]), second), options);
    for (int p = 0; p < LENGTHS.length; p++) {
      float[] start = new float[LENGTHS[p]];
      for (int i = 0; i < start.length; i++) {
        start[i] = (i % 19 - 9) / 8f;
      }
      buffer.write(p, start);
    }
    return buffer;
  }

  /** Of one group; -1: of both. */
  private static Optimizer optimizer(Buffer buffer, Rule rule, int group) {
    OptimizerOptions options = new OptimizerOptions();
    options.setRule(rule);
    options.setLr(0.03125);
    options.setWeightDecay(0.125);
    options.setMaxGradNorm(0.5);
    for (int i = 0; i < 2; i++) {
      ParamGroup values = new ParamGroup();
      if (i == 0) {
        values.setBeta1(0.75);
      } else {
        values.setLr(0.0625);
        values.setWeightDecay(0.5);
      }
      if (group < 0 || group == i) {
        options.addParamGroup(values);
      }
    }
    if (group >= 0) {
      options.setFirstParamGroup(group);
    }
    if (rule == Rule.CALLER) {
      options.addState("exp_avg");
      options.addState("exp_avg_sq");
    }
    return Optimizer.create(buffer, options);
  }

  /** In step 3 the last rank has an element that is not finite. */
  private static void put(Comm comm, Buffer buffer, int step) {
    for (int p = LENGTHS.length - 1; p >= 0; p--) {
      float[] grad = new float[LENGTHS[p]];
      for (int i = 0; i < grad.length; i++) {
        grad[i] = ((i * (7 + p) + step * 5 + comm.rank() * 3) % 23 - 11) / 16f;
      }
      if (step == 3 && comm.rank() == comm.size() - 1 && p == 0) {
        grad[17] = Float.NaN;
      }
      buffer.put(p, grad);
    }
  }

  /** In the library's order of operations. */
  private static void adamW(UpdatePiece piece) {
    double power1 = 1;
    double power2 = 1;
    for (long i = 0; i < piece.getStep(); i++) {
      power1 *= piece.getBeta1();
      power2 *= piece.getBeta2();
    }
    float beta1 = (float) piece.getBeta1();
    float rest1 = (float) (1 - piece.getBeta1());
    float beta2 = (float) piece.getBeta2();
    float rest2 = (float) (1 - piece.getBeta2());
    float decay = (float) (1 - piece.getLr() * piece.getWeightDecay());
    float stepSize = (float) (piece.getLr() / (1 - power1));
    float root = (float) Math.sqrt(1 - power2);
    float eps = (float) piece.getEps();
    FloatBuffer master = piece.master().asFloatBuffer();
    FloatBuffer grad = piece.grad().asFloatBuffer();
    FloatBuffer m = piece.state(0).asFloatBuffer();
    FloatBuffer v = piece.state(1).asFloatBuffer();
    for (int i = 0; i < piece.getCount(); i++) {
      float g = grad.get(i);
      m.put(i, beta1 * m.get(i) + rest1 * g);
      v.put(i, beta2 * v.get(i) + rest2 * g * g);
      master.put(i, master.get(i) * decay - stepSize * m.get(i) / ((float) Math.sqrt(v.get(i)) / root + eps));
    }
  }

  /** To its end; number: of the optimizer whose pieces these are. */
  private static StepReport update(Step step, int number) {
    UpdatePiece last = null;
    for (UpdatePiece piece = step.next(); piece != null; piece = step.next()) {
      Checks.check(piece.getOptimizer() == number && piece.states() == 2 && piece.getParamBegin() + piece.getCount() <= LENGTHS[(int) piece.getParam()],
          "what a piece is of");
      Checks.check(piece.master().remaining() == 4 * piece.getCount() && piece.grad().isReadOnly(), "a piece's arrays");
      adamW(piece);
      last = piece;
    }
    StepReport report = step.finish();
    Checks.check((last == null) == report.getSkipped(), "a step that is skipped has no pieces, others have");
    if (last != null) {
      Checks.fails(Status.E_STATE, last::master, "a piece of a Step");
    }
    return report;
  }

  private static void same(Buffer wanted, Buffer buffer) {
    for (int p = 0; p < LENGTHS.length; p++) {
      float[] left = new float[LENGTHS[p]];
      float[] right = new float[LENGTHS[p]];
      wanted.read(p, left);
      buffer.read(p, right);
      for (int i = 0; i < left.length; i++) {
        Checks.check(Float.floatToRawIntBits(left[i]) == Float.floatToRawIntBits(right[i]), "parameter " + p + " at " + i + ": " + right[i] + ", and "
            + left[i] + " of the library's rule");
      }
    }
  }

  private static void same(Optimizer own, Optimizer callers) {
    for (int p = 0; p < LENGTHS.length; p++) {
      for (String name : new String[] {"master", "exp_avg", "exp_avg_sq"}) {
        ByteBuffer left = own.state(p, name);
        Checks.check(left.equals(callers.state(p, name)), name + " of parameter " + p);
      }
    }
  }

  /** number: of the group that has the caller's rule, beside the library's of the other one; -1: both have. */
  private static void beside(Comm comm, int number) {
    StepOptions options = new StepOptions();
    options.setLossScale(2);
    try (Buffer wanted = buffer(comm);
        Optimizer own = optimizer(wanted, Rule.ADAMW, -1);
        Buffer buffer = buffer(comm);
        Optimizer callers = optimizer(buffer, Rule.CALLER, number);
        Optimizer other = number < 0 ? null : optimizer(buffer, Rule.ADAMW, 1 - number)) {
      Optimizers both = number < 0 ? null : number == 0 ? Optimizers.of(callers, other) : Optimizers.of(other, callers);
      for (int at = 1; at <= STEPS; at++) {
        put(comm, wanted, at);
        StepReport expected = own.step(options);
        put(comm, buffer, at);
        try (Step step = both == null ? callers.beginStep(options) : both.beginStepMany(options)) {
          StepReport report = update(step, Math.max(number, 0));
          Checks.check(report.getGradNorm() == expected.getGradNorm() || report.getSkipped(), "the norm");
          Checks.check(report.getStep() == expected.getStep() && report.getSkipped() == (at == 3), "the report");
        }
        same(wanted, buffer);
        if (number < 0) {
          same(own, callers);
        }
      }
    }
  }

  private interface End {
    void of(Step step);
  }

  /** On the last rank the step ends in one of these ways: all are told, until they say that they go on. */
  private static void failures(Comm comm) {
    End[] ends = {Step::fail, Step::close, step -> Checks.fails(Status.E_STATE, step::finish, "has a piece that was not asked for")};
    try (Buffer buffer = buffer(comm); Optimizer optimizer = optimizer(buffer, Rule.CALLER, -1)) {
      for (int i = 0; i < ends.length; i++) {
        put(comm, buffer, 1);
        try (Step step = optimizer.beginStep()) {
          if (comm.rank() == comm.size() - 1) {
            Checks.check(step.next() != null, "a piece");
            ends[i].of(step);
            Checks.fails(Status.E_STATE, step::next, "this Step is over");
          } else {
            Checks.fails(i < 2 ? Status.E_ABORTED : Status.E_STATE, () -> update(step, 0), "masters and state may have changed");
          }
        }
        put(comm, buffer, 2);
        Checks.fails(Status.E_STATE, optimizer::beginStep, "are not whole");
        optimizer.setSteps(0);
        try (Step step = optimizer.beginStep()) {
          Checks.check(update(step, 0).getStep() == 1, "it goes on");
        }
      }
    }
  }

  private static void refused(Comm comm) {
    try (Buffer buffer = buffer(comm); Optimizer optimizer = optimizer(buffer, Rule.CALLER, -1)) {
      for (String name : new String[] {"a b", "a\nb", "", "master"}) {
        OptimizerOptions options = new OptimizerOptions();
        options.setRule(Rule.CALLER);
        options.addState(name);
        Checks.fails(Status.E_INVALID, () -> Optimizer.create(buffer, options), "state has the name '" + name + "'");
      }
      OptimizerOptions lion = new OptimizerOptions();
      lion.setRule(Rule.LION);
      lion.addState("mine");
      Checks.fails(Status.E_INVALID, () -> Optimizer.create(buffer, lion), "Lion has its own");
      put(comm, buffer, 1);
      Checks.fails(Status.E_STATE, optimizer::step, "no update function");
      Checks.fails(Status.E_INVALID, () -> new Optimizers().beginStepMany(new StepOptions()), "give at least one");
      try (Step step = optimizer.beginStep()) {
        UpdatePiece piece = step.next();
        Checks.fails(Status.E_INVALID, () -> piece.state(2), "not 2");
        Checks.fails(Status.E_INVALID, () -> piece.state(-1), "not -1");
        step.next();
        Checks.fails(Status.E_STATE, piece::grad, "a piece of a Step");
      }
    }
  }

  private static Optimizer keeping(Buffer buffer, long... bytes) {
    OptimizerOptions options = new OptimizerOptions();
    options.setRule(Rule.CALLER);
    Counts counts = new Counts();
    for (long count : bytes) {
      counts.add(count);
    }
    options.addParamState("seen", counts);
    return Optimizer.create(buffer, options);
  }

  /** Of the first parameter two numbers are kept, of the second nothing; only the first's owner has them. */
  private static void whole(Comm comm) {
    Param[] params = {Param.of("a", LENGTHS[0]), Param.of("b", LENGTHS[1])};
    for (Param param : params) {
      param.setSharding(Sharding.WHOLE);
    }
    try (Buffer buffer = Buffer.create(comm, Params.of(params)); Optimizer optimizer = keeping(buffer, 16, 0)) {
      Checks.fails(Status.E_INVALID, () -> keeping(buffer, 16), "the bytes of 'seen' must be 2 numbers from 0 on, one for each parameter");
      Checks.fails(Status.E_INVALID, () -> keeping(buffer, 16, -1), "the bytes of 'seen' must be 2 numbers");
      boolean owner = false;
      for (int at = 1; at <= STEPS; at++) {
        if (at == 3) {
          continue; // put's gradient that is not finite
        }
        put(comm, buffer, at);
        try (Step step = optimizer.beginStep()) {
          for (UpdatePiece piece = step.next(); piece != null; piece = step.next()) {
            Checks.check(piece.getParamBegin() == 0 && piece.getCount() == LENGTHS[(int) piece.getParam()] && piece.paramStates() == 1, "all of it");
            Checks.check(piece.paramState(0).remaining() == (piece.getParam() == 0 ? 16 : 0), "its bytes");
            if (piece.getParam() == 0) {
              owner = true;
              DoubleBuffer seen = piece.paramState(0).asDoubleBuffer();
              seen.put(1, seen.get(1) + at);
              UpdatePiece first = piece;
              Checks.fails(Status.E_INVALID, () -> first.paramState(1), "not 1");
            }
          }
          step.finish();
        }
      }
      Checks.check(optimizer.state(1, "seen").remaining() == 0 && optimizer.state(0, "seen").remaining() == (owner ? 16 : 0), "what is kept where");
      if (owner) {
        DoubleBuffer seen = optimizer.state(0, "seen").asDoubleBuffer();
        Checks.check(seen.get(0) == 0 && seen.get(1) == STEPS * (STEPS + 1) / 2 - 3, "what is kept: " + seen.get(1));
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    try (Comm comm = Comm.create()) {
      for (int number = -1; number < 2; number++) {
        beside(comm, number);
      }
      failures(comm);
      refused(comm);
      whole(comm);
      comm.barrier();
    }
    System.out.println("the library's bits");
  }
}
