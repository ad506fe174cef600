// SPDX-License-Identifier: Apache-2.0
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.function.IntBinaryOperator;
import megadp.Buffer;
import megadp.Comm;
import megadp.Counts;
import megadp.DType;
import megadp.Grid;
import megadp.GridOptions;
import megadp.MegaDPException;
import megadp.Param;
import megadp.Params;
import megadp.Random;
import megadp.Status;
import megadp.TensorParallel;
import megadp.TpCrossEntropyOptions;
import megadp.TpEmbeddingOptions;
import megadp.TpGrad;
import megadp.TpLinear;
import megadp.TpLinearOptions;
import megadp.TpRegion;
import megadp.TpRegionOptions;
import megadp.TpSaved;
import megadp.TpSplit;

/**
 * With two ranks: a column-parallel layer and a row-parallel one on what it gives, forward and backward, as the unsplit pair; operators; an
 * embedding and a cross-entropy of a vocabulary that is cut; weights in a buffer; and what is refused. Numbers are whole, so that sums of products are exact however they are cut.
 */
public final class TensorParallelism {
  /** Row-major, in direct memory. */
  private static final class Matrix {
    final int rows;
    final int columns;
    final ByteBuffer memory;

    Matrix(int rows, int columns, IntBinaryOperator at) {
      this.rows = rows;
      this.columns = columns;
      memory = ByteBuffer.allocateDirect(4 * rows * columns).order(ByteOrder.nativeOrder());
      for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
          memory.putFloat(4 * (row * columns + column), at.applyAsInt(row, column));
        }
      }
    }

    int at(int row, int column) {
      return Math.round(memory.getFloat(4 * (row * columns + column)));
    }

    Matrix turned() {
      return new Matrix(columns, rows, (row, column) -> at(column, row));
    }

    Matrix times(Matrix other) {
      return new Matrix(rows, other.columns, (row, column) -> {
        int sum = 0;
        for (int k = 0; k < columns; k++) {
          sum += at(row, k) * other.at(k, column);
        }
        return sum;
      });
    }

    /** Those rows of which each of two ranks has one part. */
    Matrix half(int rank) {
      return new Matrix(rows / 2, columns, (row, column) -> at(rank * rows / 2 + row, column));
    }

    Matrix columnsOf(int rank) {
      return turned().half(rank).turned();
    }

    Matrix sum() {
      Matrix all = this;
      return new Matrix(1, columns, (row, column) -> {
        int sum = 0;
        for (int k = 0; k < all.rows; k++) {
          sum += all.at(k, column);
        }
        return sum;
      });
    }

    Matrix filled(int with) {
      return new Matrix(rows, columns, (row, column) -> with);
    }

    float[] values() {
      float[] values = new float[rows * columns];
      memory.asFloatBuffer().get(values);
      return values;
    }
  }

  /** Whole numbers from -4 to 4. */
  private static Matrix small(int rows, int columns, int salt) {
    return new Matrix(rows, columns, (row, column) -> (7 * row + 3 * column + 5 * salt) % 9 - 4);
  }

  private static void same(Matrix found, Matrix expected, String what) {
    if (!Arrays.equals(found.values(), expected.values())) {
      throw new AssertionError(what + ": found " + Arrays.toString(found.values()) + "; expected " + Arrays.toString(expected.values()));
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

  private static TpLinearOptions options(TpSplit split, int in, int out, boolean sequence) {
    TpLinearOptions options = new TpLinearOptions();
    options.setSplit(split);
    options.setInFeatures(in);
    options.setOutFeatures(out);
    options.setSequence(sequence);
    return options;
  }

  private static void pair(Comm comm, boolean sequence) {
    int rank = comm.rank();
    Matrix w1 = small(8, 5, 1);
    Matrix b1 = small(1, 8, 2);
    Matrix w2 = small(4, 8, 3);
    Matrix x = small(6, 5, 4);
    Matrix dy = small(6, 4, 5);
    Matrix product = x.times(w1.turned());
    Matrix h = new Matrix(6, 8, (row, column) -> product.at(row, column) + b1.at(0, column));
    Matrix y = h.times(w2.turned());
    Matrix dh = dy.times(w2);
    Matrix myX = sequence ? x.half(rank) : x;
    Matrix myDy = sequence ? dy.half(rank) : dy;
    Matrix myW1 = w1.half(rank);
    Matrix myW2 = w2.columnsOf(rank);
    TpLinearOptions up = options(TpSplit.COLUMN, 5, 8, sequence);
    up.setBias(true);
    TpLinearOptions down = options(TpSplit.ROW, 8, 4, sequence);
    down.setGrad(TpGrad.REPLICATED);
    try (TpLinear first = TpLinear.create(comm, up);
        TpLinear second = TpLinear.create(comm, down)) {
      Matrix foundH = h.columnsOf(rank).filled(-1);
      Matrix foundY = myDy.filled(-1);
      first.forward(myX.memory, myW1.memory, b1.columnsOf(rank).memory, foundH.memory);
      same(foundH, h.columnsOf(rank), "hidden");
      Matrix foundDh = foundH.filled(-1);
      Matrix dw2 = myW2.filled(-1);
      try (TpSaved saved = second.forwardSaving(foundH.memory, myW2.memory, null, foundY.memory)) {
        second.backwardSaved(saved, myW2.memory, myDy.memory, foundDh.memory, dw2.memory, null, false);
        fails(Status.E_STATE, () -> second.backwardSaved(saved, myW2.memory, myDy.memory, foundDh.memory, null, null, false), "earlier");
      }
      same(foundY, sequence ? y.half(rank) : y, "output");
      same(foundDh, dh.columnsOf(rank), "gradient of hidden");
      same(dw2, dy.turned().times(h).columnsOf(rank), "gradient of the second weight");
      Matrix dx = myX.filled(-1);
      Matrix dw1 = myW1.filled(0);
      Matrix db1 = b1.columnsOf(rank).filled(0);
      first.backward(myX.memory, myW1.memory, foundDh.memory, dx.memory, dw1.memory, db1.memory, true);
      same(dx, sequence ? dh.times(w1).half(rank) : dh.times(w1), "gradient of the input");
      same(dw1, dh.turned().times(x).half(rank), "gradient of the first weight");
      same(db1, dh.sum().columnsOf(rank), "gradient of the first bias");
      fails(Status.E_INVALID, () -> first.forward(myX.memory, null, null, foundH.memory), "weight is NULL");
      fails(Status.E_INVALID, () -> first.forward(ByteBuffer.allocate(4), null, null, foundH.memory), "input must be a direct ByteBuffer");
    }
  }

  private static void regions(Comm comm) {
    int rank = comm.rank();
    Matrix whole = small(3, 4, 1);
    Matrix part = new Matrix(rank + 1, 4, (row, column) -> whole.at(rank + row, column));
    Counts parts = new Counts();
    parts.add(1);
    parts.add(2);
    TpRegionOptions gather = new TpRegionOptions();
    gather.setRegion(TpRegion.GATHER);
    gather.setGrad(TpGrad.PARTIAL);
    gather.addDimension(rank + 1);
    gather.addDimension(4);
    gather.setParts(parts);
    Matrix found = whole.filled(-1);
    Matrix back = part.filled(-1);
    TensorParallel.regionForward(comm, gather, DType.F32, part.memory, found.memory);
    TensorParallel.regionBackward(comm, gather, DType.F32, whole.memory, back.memory);
    same(found, whole, "gathered");
    same(back, new Matrix(rank + 1, 4, (row, column) -> 2 * part.at(row, column)), "gradient of what was gathered");
    gather.setGrad(TpGrad.UNSET);
    fails(Status.E_INVALID, () -> TensorParallel.regionForward(comm, gather, DType.F32, part.memory, found.memory), "config.grad");
  }

  private static ByteBuffer integers(long... values) {
    ByteBuffer memory = ByteBuffer.allocateDirect(8 * values.length).order(ByteOrder.nativeOrder());
    memory.asLongBuffer().put(values);
    return memory;
  }

  private static void embedding(Comm comm, boolean sequence) {
    int rank = comm.rank();
    int[] ids = {5, 0, 2, 5};
    ByteBuffer given = integers(5, 0, 2, 5);
    Matrix table = small(6, 3, 1);
    Matrix dy = small(4, 3, 2);
    Matrix y = new Matrix(4, 3, (row, column) -> table.at(ids[row], column));
    Matrix grad = new Matrix(6, 3, (row, column) -> {
      int sum = 1; // what was there
      for (int i = 0; i < ids.length; i++) {
        sum += ids[i] == row ? dy.at(i, column) : 0;
      }
      return sum;
    });
    TpEmbeddingOptions options = new TpEmbeddingOptions();
    options.setRows(6);
    options.setFeatures(3);
    options.setGrad(TpGrad.REPLICATED);
    options.setSequence(sequence);
    Matrix found = (sequence ? y.half(rank) : y).filled(-1);
    Matrix dw = table.half(rank).filled(1);
    TensorParallel.embeddingForward(comm, options, given, table.half(rank).memory, found.memory);
    TensorParallel.embeddingBackward(comm, options, given, (sequence ? dy.half(rank) : dy).memory, dw.memory, true);
    same(found, sequence ? y.half(rank) : y, "rows of the table");
    same(dw, grad.half(rank), "gradient of the table");
    options.setRows(7);
    fails(Status.E_INVALID, () -> TensorParallel.embeddingForward(comm, options, given, table.memory, found.memory), "config.rows is 7");
  }

  /** Of classes that are all as likely, of which the last column is padding; target -1 is ignored. */
  private static void crossEntropy(Comm comm) {
    int rank = comm.rank();
    Matrix logits = new Matrix(3, 2, (row, column) -> rank == 1 && column == 1 ? 50 : 2);
    ByteBuffer targets = integers(2, -1, 0);
    TpCrossEntropyOptions options = new TpCrossEntropyOptions();
    options.setClasses(3);
    options.setIgnoreIndex(-1);
    Matrix losses = new Matrix(1, 3, (row, column) -> -1);
    Matrix saved = new Matrix(3, 2, (row, column) -> -1);
    Matrix given = new Matrix(1, 3, (row, column) -> 3 * (column + 1));
    Matrix dx = logits.filled(-1);
    TensorParallel.crossEntropyForward(comm, options, logits.memory, targets, losses.memory, saved.memory);
    TensorParallel.crossEntropyBackward(comm, options, logits.memory, targets, saved.memory, given.memory, dx.memory);
    float[] found = losses.values();
    for (int token = 0; token < 3; token++) {
      if (Math.abs(found[token] - (token == 1 ? 0 : Math.log(3))) > 1e-6) {
        throw new AssertionError("losses are " + Arrays.toString(found) + "; expected log 3, 0, log 3");
      }
    }
    int[][] grads = {{1, 1, -2, 0}, {0, 0, 0, 0}, {-6, 3, 3, 0}};
    Matrix rounded = new Matrix(3, 2, dx::at);
    same(rounded, new Matrix(3, 2, (row, column) -> grads[row][2 * rank + column]), "gradient of the logits");
    options.setLabelSmoothing(1);
    fails(Status.E_INVALID, () -> TensorParallel.crossEntropyForward(comm, options, logits.memory, targets, losses.memory, null),
        "config.label_smoothing is 1");
  }

  private static void seeds(Comm comm) {
    GridOptions cut = new GridOptions();
    cut.setTp(2);
    try (Grid grid = Grid.create(comm, cut)) {
      if (grid.seed(-5, Random.REPLICATED) != -5 || grid.seed(5, Random.TENSOR) != 5 + 2718 + comm.rank()) {
        throw new AssertionError("seeds are " + grid.seed(-5, Random.REPLICATED) + " and " + grid.seed(5, Random.TENSOR));
      }
      fails(Status.E_INVALID, () -> grid.seed(5, Random.UNSET), "random is 0");
    }
  }

  /** A layer of a buffer's parameters, for a world of one. */
  private static void inABuffer(Comm comm) {
    Comm alone = comm.split(comm.rank(), 0);
    TpLinearOptions options = options(TpSplit.COLUMN, 2, 3, false);
    options.setBias(true);
    try (Buffer buffer = Buffer.create(alone, Params.of(Param.of("w", 3, 2), Param.of("b", 3)));
        TpLinear layer = TpLinear.createIn(alone, buffer, 0, 1, options)) {
      buffer.write(0, new float[] {1, 2, 3, 4, 5, 6});
      buffer.write(1, new float[] {1, 2, 3});
      Matrix x = new Matrix(1, 2, (row, column) -> column == 0 ? 1 : 10);
      Matrix dy = new Matrix(1, 3, (row, column) -> column + 1);
      Matrix y = dy.filled(-1);
      layer.forward(x.memory, null, null, y.memory);
      same(y, new Matrix(1, 3, (row, column) -> new int[] {22, 45, 68}[column]), "output of a buffer's parameters");
      layer.backward(x.memory, null, dy.memory, null, null, null, false);
      float[] grad = new float[6];
      buffer.grad(0).asFloatBuffer().get(grad);
      if (!Arrays.equals(grad, new float[] {1, 10, 2, 20, 3, 30})) {
        throw new AssertionError(Arrays.toString(grad));
      }
    } finally {
      alone.close();
    }
  }

  public static void main(String[] arguments) {
    try (Comm comm = Comm.create()) {
      pair(comm, false);
      pair(comm, true);
      regions(comm);
      embedding(comm, false);
      embedding(comm, true);
      crossEntropy(comm);
      seeds(comm);
      inABuffer(comm);
      TpLinear closed = TpLinear.create(comm, options(TpSplit.COLUMN, 2, 4, false));
      closed.close();
      fails(Status.E_STATE, () -> closed.forward(null, null, null, null), "closed");
    }
    System.out.println("as unsplit");
  }
}
