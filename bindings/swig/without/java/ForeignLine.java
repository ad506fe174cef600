// SPDX-License-Identifier: Apache-2.0
import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;

/**
 * Fits a line on any number of ranks by megadp.h alone, through Java's foreign-function interface (22 and newer): nothing to compile.
 *
 * <p>usage: megadp run -n 2 java --enable-native-access=ALL-UNNAMED ForeignLine.java (MEGADP_LIBRARY names libmegadp.so.0)
 *
 * <p>Each call and the question for its error must run on one carrier thread: platform threads do, virtual threads may not.
 */
public final class ForeignLine {
  static final StructLayout PARAM = struct("mdp_param", JAVA_INT, "struct_size", JAVA_INT, "dtype", ADDRESS, "name", ADDRESS, "shape",
      JAVA_INT, "ndim", JAVA_INT, "uses_per_step", JAVA_INT, "param_class", JAVA_INT, "placement", JAVA_INT, "shard_dim",
      JAVA_INT, "shard_stride", JAVA_INT, "param_group", JAVA_INT, "use_order", JAVA_LONG, "flags", ADDRESS, "tie",
      JAVA_INT, "sharding", JAVA_INT, "reserved", JAVA_DOUBLE, "cost");
  static final StructLayout TENSOR = struct("mdp_tensor", JAVA_INT, "struct_size", JAVA_INT, "dtype", JAVA_INT, "device_type",
      JAVA_INT, "device_id", JAVA_INT, "ndim", JAVA_INT, "reserved", ADDRESS, "data", ADDRESS, "shape", ADDRESS, "strides");
  static final StructLayout OPTIMIZER = struct("mdp_optimizer_config", JAVA_INT, "struct_size", JAVA_INT, "rule", JAVA_DOUBLE, "lr",
      JAVA_DOUBLE, "beta1", JAVA_DOUBLE, "beta2", JAVA_DOUBLE, "eps", JAVA_DOUBLE, "weight_decay", JAVA_DOUBLE, "max_grad_norm",
      ADDRESS, "param_groups", JAVA_LONG, "param_group_count", JAVA_LONG, "flags",
      JAVA_DOUBLE, "max_grad_value", JAVA_INT, "norm", JAVA_INT, "first_param_group", JAVA_DOUBLE, "momentum",
      ADDRESS, "state", ADDRESS, "param_states", JAVA_LONG, "param_state_count", JAVA_DOUBLE, "average_decay",
      JAVA_INT, "state_dtype", JAVA_INT, "reserved", JAVA_LONG, "seed");
  static final int F64 = 5; // MDP_DTYPE_F64
  static final int PENDING = 1; // MDP_PENDING

  private final Arena arena = Arena.ofConfined();
  private final SymbolLookup library = SymbolLookup.loaderLookup(); // of what main() has loaded
  private final MethodHandle lastError = function("mdp_last_error", ADDRESS);
  private final MemorySegment number = arena.allocate(JAVA_DOUBLE);
  private final MemorySegment tensor = sized(TENSOR);
  private MemorySegment buffer;

  private static StructLayout struct(String name, Object... layoutsAndNames) {
    MemoryLayout[] fields = new MemoryLayout[layoutsAndNames.length / 2];
    for (int i = 0; i < fields.length; i++) {
      fields[i] = ((MemoryLayout) layoutsAndNames[2 * i]).withName((String) layoutsAndNames[2 * i + 1]);
    }
    return MemoryLayout.structLayout(fields).withName(name);
  }

  private MethodHandle function(String name, MemoryLayout result, MemoryLayout... arguments) {
    return Linker.nativeLinker().downcallHandle(library.find(name).orElseThrow(), FunctionDescriptor.of(result, arguments));
  }

  /** Calls a function that returns a status. Arguments are MemorySegment, Integer or Long. */
  private int call(String name, Object... arguments) throws Throwable {
    MemoryLayout[] layouts = new MemoryLayout[arguments.length];
    for (int i = 0; i < layouts.length; i++) {
      layouts[i] = arguments[i] instanceof Integer ? JAVA_INT : arguments[i] instanceof Long ? JAVA_LONG : ADDRESS;
    }
    int status = (int) function(name, JAVA_INT, layouts).invokeWithArguments(arguments);
    if (status < 0) {
      MemorySegment text = (MemorySegment) lastError.invoke();
      throw new IllegalStateException(name + ": " + text.reinterpret(4096).getString(0));
    }
    return status;
  }

  private void destroy(String name, MemorySegment handle) throws Throwable {
    Linker.nativeLinker().downcallHandle(library.find(name).orElseThrow(), FunctionDescriptor.ofVoid(ADDRESS)).invoke(handle);
  }

  /** The handle that a function writes through its last argument. */
  private MemorySegment made(String name, Object... arguments) throws Throwable {
    MemorySegment out = arena.allocate(ADDRESS);
    Object[] all = java.util.Arrays.copyOf(arguments, arguments.length + 1);
    all[arguments.length] = out;
    call(name, all);
    return out.get(ADDRESS, 0);
  }

  private MemorySegment sized(StructLayout layout) {
    MemorySegment struct = arena.allocate(layout);
    struct.set(JAVA_INT, 0, (int) layout.byteSize());
    return struct;
  }

  private static long offset(StructLayout layout, String field) {
    return layout.byteOffset(PathElement.groupElement(field));
  }

  /** One parameter without dimensions for each name. */
  private MemorySegment describe(String... names) {
    MemorySegment params = arena.allocate(PARAM, names.length);
    for (int i = 0; i < names.length; i++) {
      MemorySegment param = params.asSlice(i * PARAM.byteSize(), PARAM);
      param.set(JAVA_INT, 0, (int) PARAM.byteSize());
      param.set(ADDRESS, offset(PARAM, "name"), arena.allocateFrom(names[i]));
    }
    return params;
  }

  private double read(long param) throws Throwable {
    call("mdp_param_read", buffer, param, tensor, MemorySegment.NULL);
    return number.get(JAVA_DOUBLE, 0);
  }

  private void put(long param, double grad) throws Throwable {
    number.set(JAVA_DOUBLE, 0, grad);
    call("mdp_grad_put", buffer, param, tensor, 0L, MemorySegment.NULL);
  }

  /** Waits in slices, between which an interrupt is seen. */
  private void await(MemorySegment request) throws Throwable {
    try {
      while (call("mdp_request_wait", request, 50_000_000L) == PENDING) {
        if (Thread.interrupted()) {
          throw new InterruptedException();
        }
      }
    } finally {
      destroy("mdp_request_free", request);
    }
  }

  private void train() throws Throwable {
    MemorySegment comm = made("mdp_comm_create", MemorySegment.NULL, MemorySegment.NULL);
    int rank = call("mdp_comm_rank", comm);
    int ranks = call("mdp_comm_size", comm);
    buffer = made("mdp_buffer_register", comm, MemorySegment.NULL, MemorySegment.NULL, describe("w", "b"), 2L);
    MemorySegment config = sized(OPTIMIZER);
    config.set(JAVA_DOUBLE, offset(OPTIMIZER, "lr"), 0.1);
    MemorySegment optimizer = made("mdp_optimizer_create", buffer, config);
    tensor.set(JAVA_INT, offset(TENSOR, "dtype"), F64);
    tensor.set(ADDRESS, offset(TENSOR, "data"), number);
    for (int step = 0; step < 40; step++) {
      double w = read(0); // waits until the step before has brought it
      double b = read(1);
      double gradW = 0;
      double gradB = 0;
      for (int i = rank; i < 64; i += ranks) {
        double x = i / 32.0 - 1;
        double error = w * x + b - (2 * x - 1);
        gradW += error * x / 32 * ranks;
        gradB += error / 32 * ranks;
      }
      put(1, gradB);
      put(0, gradW);
      call("mdp_optimizer_step", optimizer, MemorySegment.NULL, MemorySegment.NULL, MemorySegment.NULL); // ends backward, too
    }
    System.out.printf(java.util.Locale.ROOT, "fit %.2f %.2f%n", read(0), read(1));
    try {
      put(7, 1);
    } catch (IllegalStateException error) {
      System.out.println("refused " + error.getMessage().contains("7"));
    }
    await(made("mdp_barrier", comm));
    destroy("mdp_optimizer_destroy", optimizer);
    destroy("mdp_buffer_destroy", buffer);
    destroy("mdp_comm_destroy", comm);
  }

  public static void main(String[] arguments) throws Throwable {
    if (arguments.length == 1 && arguments[0].equals("layouts")) {
      for (StructLayout layout : new StructLayout[] {PARAM, TENSOR, OPTIMIZER}) {
        StringBuilder line = new StringBuilder(layout.name().get() + " " + layout.byteSize());
        layout.memberLayouts().forEach(field -> line.append(' ').append(field.name().get()).append('=').append(offset(layout, field.name().get())));
        System.out.println(line);
      }
      return;
    }
    System.load(System.getenv("MEGADP_LIBRARY"));
    new ForeignLine().train();
  }
}
