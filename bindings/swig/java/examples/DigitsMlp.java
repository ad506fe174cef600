// SPDX-License-Identifier: Apache-2.0
import java.io.IOException;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.List;
import megadp.Buffer;
import megadp.Comm;
import megadp.Op;
import megadp.Optimizer;
import megadp.OptimizerOptions;
import megadp.Param;
import megadp.Params;

/**
 * Trains a two-layer network on handwritten digits, on any number of ranks: tests/bindings/README.md describes the model.
 *
 * <p>usage: megadp run -n 2 java -cp megadp.jar:. DigitsMlp digits.csv (prints the loss of each step)
 */
public final class DigitsMlp {
  private static final int STEPS = 100;
  private static final int BATCH = 64;
  private static final int PIXELS = 64;
  private static final int HIDDEN = 32;
  private static final int CLASSES = 10;
  private static final int W1 = 0;
  private static final int B1 = 1;
  private static final int W2 = 2;
  private static final int B2 = 3;

  private final float[][] pixels;
  private final int[] digits;
  private final float[] w1 = new float[PIXELS * HIDDEN];
  private final float[] b1 = new float[HIDDEN];
  private final float[] w2 = new float[HIDDEN * CLASSES];
  private final float[] b2 = new float[CLASSES];

  private DigitsMlp(String path) throws IOException {
    List<String> lines = Files.readAllLines(Paths.get(path));
    pixels = new float[lines.size()][PIXELS];
    digits = new int[lines.size()];
    for (int row = 0; row < digits.length; row++) {
      String[] fields = lines.get(row).split(",");
      for (int i = 0; i < PIXELS; i++) {
        pixels[row][i] = Float.parseFloat(fields[i]) / 16;
      }
      digits[row] = Integer.parseInt(fields[PIXELS].trim());
    }
  }

  /** The same weights on every rank, written through views of the library's memory. */
  private static void initialize(Buffer buffer) {
    long state = 1;
    for (int[] weight : new int[][] {{W1, PIXELS}, {W2, HIDDEN}}) {
      FloatBuffer view = buffer.param(weight[0]).asFloatBuffer();
      while (view.hasRemaining()) {
        state = (state * 1664525 + 1013904223) & 0xffffffffL;
        view.put((float) ((state / 4294967296.0 - 0.5) * 2 / Math.sqrt(weight[1])));
      }
    }
    buffer.changed();
  }

  /** Forward and backward over some rows. Gradients leave as soon as they are known, the last layer's first. Returns the mean loss. */
  private double trainStep(Buffer buffer, int[] rows) {
    readParameters(buffer);
    float[][] hidden = new float[rows.length][HIDDEN];
    float[][] errors = new float[rows.length][CLASSES]; // the loss's derivative by the logits
    double loss = 0;
    for (int k = 0; k < rows.length; k++) {
      loss += forward(rows[k], hidden[k], errors[k], rows.length);
    }
    float[] gradB2 = new float[CLASSES];
    float[] gradW2 = new float[HIDDEN * CLASSES];
    for (int k = 0; k < rows.length; k++) {
      for (int c = 0; c < CLASSES; c++) {
        gradB2[c] += errors[k][c];
        for (int h = 0; h < HIDDEN; h++) {
          gradW2[h * CLASSES + c] += hidden[k][h] * errors[k][c];
        }
      }
    }
    buffer.put(B2, gradB2);
    buffer.put(W2, gradW2);
    float[] gradB1 = new float[HIDDEN];
    float[] gradW1 = new float[PIXELS * HIDDEN];
    for (int k = 0; k < rows.length; k++) {
      for (int h = 0; h < HIDDEN; h++) {
        float error = hidden[k][h] > 0 ? backward(errors[k], h) : 0;
        gradB1[h] += error;
        for (int i = 0; i < PIXELS; i++) {
          gradW1[i * HIDDEN + h] += pixels[rows[k]][i] * error;
        }
      }
    }
    buffer.put(B1, gradB1);
    buffer.put(W1, gradW1);
    return loss / rows.length;
  }

  private void readParameters(Buffer buffer) {
    buffer.read(W1, w1); // each waits until the step before has brought it
    buffer.read(B1, b1);
    buffer.read(W2, w2);
    buffer.read(B2, b2);
  }

  private double forward(int row, float[] hidden, float[] error, int count) {
    for (int h = 0; h < HIDDEN; h++) {
      float sum = b1[h];
      for (int i = 0; i < PIXELS; i++) {
        sum += pixels[row][i] * w1[i * HIDDEN + h];
      }
      hidden[h] = Math.max(sum, 0);
    }
    double total = 0;
    for (int c = 0; c < CLASSES; c++) {
      float logit = b2[c];
      for (int h = 0; h < HIDDEN; h++) {
        logit += hidden[h] * w2[h * CLASSES + c];
      }
      error[c] = logit;
      total += Math.exp(logit);
    }
    double loss = Math.log(total) - error[digits[row]];
    for (int c = 0; c < CLASSES; c++) {
      error[c] = (float) ((Math.exp(error[c]) / total - (c == digits[row] ? 1 : 0)) / count);
    }
    return loss;
  }

  private float backward(float[] errors, int h) {
    float sum = 0;
    for (int c = 0; c < CLASSES; c++) {
      sum += errors[c] * w2[h * CLASSES + c];
    }
    return sum;
  }

  public static void main(String[] arguments) throws Exception {
    DigitsMlp model = new DigitsMlp(arguments[0]);
    OptimizerOptions options = new OptimizerOptions();
    options.setLr(1e-2);
    options.setWeightDecay(0.01);
    Params params = Params.of(Param.of("w1", PIXELS, HIDDEN), Param.of("b1", HIDDEN), Param.of("w2", HIDDEN, CLASSES), Param.of("b2", CLASSES));
    try (Comm comm = Comm.create();
        Buffer buffer = Buffer.create(comm, params);
        Optimizer optimizer = Optimizer.create(buffer, options)) {
      initialize(buffer);
      int rank = comm.rank();
      int ranks = comm.size();
      int[] rows = new int[BATCH * (rank + 1) / ranks - BATCH * rank / ranks];
      for (int t = 0; t < STEPS; t++) {
        for (int k = 0; k < rows.length; k++) {
          rows[k] = (BATCH * t + BATCH * rank / ranks + k) % model.digits.length;
        }
        double[] loss = {model.trainStep(buffer, rows)};
        optimizer.step(); // ends backward, updates the parameters and gathers them
        comm.allReduce(loss, Op.AVG);
        if (rank == 0) {
          System.out.printf(java.util.Locale.ROOT, "%.9f%n", loss[0]);
          if (System.out.checkError()) { // a PrintStream keeps its failures to itself
            throw new java.io.IOException("the losses could not be written");
          }
        }
      }
    }
  }
}
