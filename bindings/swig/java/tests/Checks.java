// SPDX-License-Identifier: Apache-2.0
import megadp.MegaDPException;
import megadp.Status;

/** What the programs of these tests expect. */
final class Checks {
  private Checks() {}

  static void check(boolean good, String what) {
    if (!good) {
      throw new AssertionError(what);
    }
  }

  static void fails(Status status, Runnable call, String words) {
    try {
      call.run();
    } catch (MegaDPException error) {
      check(error.is(status) && error.text().contains(words), "expected " + status + " with " + words + ", was " + error);
      return;
    }
    throw new AssertionError("expected " + status + " with " + words);
  }
}
