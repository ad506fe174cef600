// SPDX-License-Identifier: Apache-2.0
package megadp;

import java.lang.ref.PhantomReference;
import java.lang.ref.ReferenceQueue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * What is done once an object can no longer be reached, as java.lang.ref.Cleaner does from Java 9 on. Everything that is done here is local
 * and may come from any thread, as the library allows for its destroys.
 */
final class Unreachable extends PhantomReference<Object> {
  private static final ReferenceQueue<Object> QUEUE = new ReferenceQueue<>();
  private static final Set<Unreachable> WAITING = ConcurrentHashMap.newKeySet();

  static {
    Thread thread = new Thread(Unreachable::run, "megadp objects");
    thread.setDaemon(true);
    thread.start();
  }

  private final Runnable action;

  private Unreachable(Object object, Runnable action) {
    super(object, QUEUE);
    this.action = action;
  }

  /** action must not refer to the object. */
  static void then(Object object, Runnable action) {
    WAITING.add(new Unreachable(object, action));
  }

  /** Keeps `kept` as long as the object, which may be a ByteBuffer: its slices and views refer to it. */
  static void keepUntil(Object object, Object kept) {
    then(object, kept::hashCode);
  }

  private static void run() {
    while (true) {
      try {
        Unreachable gone = (Unreachable) QUEUE.remove();
        WAITING.remove(gone);
        gone.action.run();
      } catch (InterruptedException | RuntimeException ignored) {
        // Nobody interrupts this thread for a reason, and the actions throw nothing: the other objects still wait for theirs.
      }
    }
  }
}
