// SPDX-License-Identifier: Apache-2.0
package megadp;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Loads libmegadp.so.0 and the wrapper, which lie in the jar. The environment variable MEGADP_LIBRARY names another libmegadp. The wrapper
 * asks for libmegadp.so.0 by that name, which the dynamic linker takes for the one that is loaded already.
 */
final class NativeLibrary {
  private static final String FOLDER = "/megadp/native/" + System.getProperty("os.name").toLowerCase() + "-" + System.getProperty("os.arch") + "/";

  private NativeLibrary() {}

  static void load() {
    try {
      Path folder = Files.createTempDirectory("megadp");
      try {
        String chosen = System.getenv("MEGADP_LIBRARY");
        if (chosen == null || chosen.isEmpty()) {
          unpack("libmegadp.so.0", folder);
        } else {
          System.load(new File(chosen).getAbsolutePath());
        }
        unpack("libmegadp_java.so", folder);
      } finally {
        Files.deleteIfExists(folder);
      }
    } catch (IOException error) {
      throw (UnsatisfiedLinkError) new UnsatisfiedLinkError("megadp's libraries cannot be unpacked: " + error).initCause(error);
    }
  }

  /** Once loaded, a library needs its file no longer; so none is left behind, however the process ends. */
  private static void unpack(String name, Path folder) throws IOException {
    Path file = folder.resolve(name);
    try (InputStream packed = NativeLibrary.class.getResourceAsStream(FOLDER + name)) {
      if (packed == null) {
        throw new UnsatisfiedLinkError("this jar has no " + FOLDER + name + ": it was made for another system");
      }
      Files.copy(packed, file);
      System.load(file.toString());
    } finally {
      Files.deleteIfExists(file);
    }
  }
}
