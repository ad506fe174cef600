// SPDX-License-Identifier: Apache-2.0
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import megadp.Comm;
import megadp.ConvOptions;
import megadp.ConvPart;
import megadp.DType;
import megadp.Edge;
import megadp.Halo;
import megadp.HaloOptions;
import megadp.MegaDPException;
import megadp.Status;

/**
 * With two ranks: a ring of three elements each, with a halo of one before and two behind, forward and backward, in memory of the caller's and of the
 * library's; what is refused; and how a convolution is cut.
 */
public final class Halos {
  private static ByteBuffer memory(double... values) {
    ByteBuffer made = ByteBuffer.allocateDirect(8 * values.length).order(ByteOrder.nativeOrder());
    made.asDoubleBuffer().put(values);
    return made;
  }

  private static void same(ByteBuffer found, double... expected) {
    double[] values = new double[found.capacity() / 8];
    found.asDoubleBuffer().get(values);
    if (!Arrays.equals(values, expected)) {
      throw new AssertionError("found " + Arrays.toString(values) + "; expected " + Arrays.toString(expected));
    }
  }

  private static void equal(Object found, Object expected) {
    if (!found.equals(expected)) {
      throw new AssertionError("found " + found + "; expected " + expected);
    }
  }

  private static void fails(Status status, Runnable call, String words) {
    try {
      call.run();
    } catch (MegaDPException error) {
      if (error.is(status) && error.text().contains(words)) {
        return;
      }
      throw error;
    }
    throw new AssertionError("no failure; expected " + status);
  }

  private static void ring(Comm comm) {
    int rank = comm.rank();
    HaloOptions options = new HaloOptions();
    options.setDtype(DType.F64);
    options.setArrays(2);
    options.addDimension(2, 3, 1, 2, Edge.PERIODIC);
    double[] expected = rank == 0 ? new double[] {6, 1, 2, 3, 4, 5} : new double[] {3, 4, 5, 6, 1, 2};
    Halo halo = Halo.create(comm, options);
    equal(Arrays.asList(halo.place(0), halo.partBegin(0), halo.wholeSize(0)), Arrays.asList((long) rank, 3L * rank, 6L));
    ByteBuffer field = memory(0, expected[1], expected[2], expected[3], 0, 0);
    halo.exchange(field, false);
    same(field, expected);
    ByteBuffer gradient = rank == 0 ? memory(1, 2, 3, 4, 5, 6) : memory(10, 20, 30, 40, 50, 60);
    halo.exchange(gradient, true);
    same(gradient, rank == 0 ? new double[] {0, 52, 63, 14, 0, 0} : new double[] {0, 25, 36, 41, 0, 0});
    ByteBuffer array = halo.array(1);
    for (int i = 1; i < 4; i++) {
      array.putDouble(8 * i, expected[i]);
    }
    halo.start(1, false);
    fails(Status.E_STATE, () -> halo.start(1, false), "mdp_halo_finish comes first");
    halo.finish();
    same(array, expected);
    fails(Status.E_INVALID, () -> halo.exchange(memory(1, 2), false), "fields[0] has shape [2]");
    fails(Status.E_INVALID, () -> halo.exchange(null, false), "fields[0]");
    fails(Status.E_INVALID, () -> halo.array(2), "index is 2");
    fails(Status.E_INVALID, () -> halo.place(1), "dimension must be 0 to 0, not 1");
    halo.close();
    fails(Status.E_STATE, halo::finish, "closed");
    same(array, expected); // views keep their memory
    options.setFields(2);
    options.stagger(1, 0);
    Halo both = Halo.create(comm, options);
    ByteBuffer fields = memory(0, expected[1], expected[2], expected[3], 0, 0, 0, expected[1], expected[2], expected[3], 0, 0, 0);
    both.exchange(fields, false);
    double[] twice = Arrays.copyOf(expected, 13);
    System.arraycopy(expected, 0, twice, 6, 6);
    twice[12] = expected[0]; // all around the ring
    same(fields, twice);
    both.close();
    options.stagger(2, 0);
    fails(Status.E_INVALID, () -> Halo.create(comm, options), "stagger(2, 0): fields are 0 to 1");
  }

  private static void convolution() {
    ConvOptions options = new ConvOptions();
    options.setKernel(3);
    options.setStride(2);
    options.setPaddingLow(1);
    options.addPart(4);
    options.addPart(3);
    ConvPart part = Halo.convSplit(options, 0);
    equal(Arrays.asList(part.getLow(), part.getHigh(), part.getOutputBegin(), part.getOutputSize(), part.getFirst(), part.getInsideBegin(),
        part.getInsideSize(), part.getWholeOutput()), Arrays.asList(1L, 0L, 0L, 2L, 0L, 1L, 1L, 3L));
    fails(Status.E_INVALID, () -> Halo.convSplit(options, 2), "part is 2");
  }

  public static void main(String[] arguments) {
    try (Comm comm = Comm.create()) {
      ring(comm);
    }
    convolution();
    System.out.println("as the ring");
  }
}
