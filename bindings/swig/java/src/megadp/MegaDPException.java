// SPDX-License-Identifier: Apache-2.0
package megadp;

import java.nio.charset.StandardCharsets;

/** A call of the library failed. docs/errors.md says what each status means and what to do. */
public final class MegaDPException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final int code;
  private final String text;
  private final int rank;
  private final int bucket;
  private final long param;
  private final long operation;

  MegaDPException(int code, byte[] text, int rank, int bucket, long param, long operation) {
    this(code, new String(text, StandardCharsets.UTF_8), rank, bucket, param, operation);
  }

  private MegaDPException(int code, String text, int rank, int bucket, long param, long operation) {
    super(name(code) + ": " + text);
    this.code = code;
    this.text = text;
    this.rank = rank;
    this.bucket = bucket;
    this.param = param;
    this.operation = operation;
  }

  static MegaDPException invalid(String text) {
    return new MegaDPException(Status.E_INVALID.swigValue(), text, -1, -1, -1, 0);
  }

  private static String name(int code) {
    for (Status status : Status.values()) {
      if (status.swigValue() == code) {
        return status.name();
      }
    }
    return "status " + code; // of a library newer than these classes
  }

  /** The number of the status; see {@link Status}. */
  public int code() {
    return code;
  }

  /** Whether the failure has this status. */
  public boolean is(Status status) {
    return status.swigValue() == code;
  }

  /** The sentence that explains the failure. */
  public String text() {
    return text;
  }

  /** The rank to blame, in the world; -1: not known, or no rank's fault. */
  public int rank() {
    return rank;
  }

  /** The bucket's number in launch order, or -1. */
  public int bucket() {
    return bucket;
  }

  /** The parameter's index at registration, or -1. */
  public long param() {
    return param;
  }

  /** The running number of the collective in its group, or 0. */
  public long operation() {
    return operation;
  }
}
