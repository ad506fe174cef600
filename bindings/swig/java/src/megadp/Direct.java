// SPDX-License-Identifier: Apache-2.0
package megadp;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** What the generated classes do in Java: checks of arguments that have no address, and arrays by way of direct memory. */
final class Direct {
  private static final ThreadLocal<ByteBuffer> SCRATCH = new ThreadLocal<>();

  private Direct() {}

  /** From its position to its limit. */
  static ByteBuffer checked(ByteBuffer memory, String argument, boolean written) {
    if (memory == null || !memory.isDirect()) {
      throw MegaDPException.invalid(argument + " must be a direct ByteBuffer, not " + (memory == null ? "null" : "one on the heap"));
    }
    if (memory.order() != ByteOrder.nativeOrder()) {
      throw MegaDPException.invalid(argument + " must be a ByteBuffer in this machine's byte order, not " + memory.order()
          + ": give it .order(ByteOrder.nativeOrder()) before it is filled; a slice or duplicate needs that anew");
    }
    if (written && memory.isReadOnly()) {
      throw MegaDPException.invalid(argument + " must not be a read-only ByteBuffer: it is written");
    }
    return memory.slice();
  }

  /** The same; null stays null. */
  static ByteBuffer optional(ByteBuffer memory, String argument, boolean written) {
    return memory == null ? null : checked(memory, argument, written);
  }

  static long[] checked(long[] list, String argument) {
    if (list == null) {
      throw MegaDPException.invalid(argument + " must be an array of numbers, not null");
    }
    return list;
  }

  static byte[] utf8(String text, String argument) {
    if (text == null) {
      throw MegaDPException.invalid(argument + " must be a String, not null");
    }
    try { // getBytes would put '?' in the place of half a surrogate pair
      ByteBuffer bytes = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
      return Arrays.copyOf(bytes.array(), bytes.limit());
    } catch (CharacterCodingException error) {
      throw MegaDPException.invalid(argument + " has half of a surrogate pair in it, which is no text; Base64 makes text of any bytes");
    }
  }

  static String text(byte[] utf8) {
    if (utf8 == null) {
      return "";
    }
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8)).toString();
    } catch (CharacterCodingException error) {
      throw MegaDPException.invalid("these " + utf8.length + " bytes are no text in UTF-8, so that no String can hold them");
    }
  }

  static long elementSize(DType dtype) {
    switch (dtype) {
      case F64:
      case I64:
        return 8;
      case BF16:
      case F16:
        return 2;
      case U8:
        return 1;
      default:
        return 4;
    }
  }

  /** This thread's, until its next call of this class. */
  static ByteBuffer scratch(long bytes) {
    if (bytes > Integer.MAX_VALUE) {
      throw MegaDPException.invalid("an array of " + bytes + " bytes is too long; use ByteBuffers, in parts");
    }
    ByteBuffer memory = SCRATCH.get();
    if (memory == null || memory.capacity() < bytes) {
      memory = ByteBuffer.allocateDirect((int) bytes);
      SCRATCH.set(memory);
    }
    ByteBuffer part = memory.duplicate();
    part.limit((int) bytes);
    return part.slice().order(ByteOrder.nativeOrder());
  }

  static ByteBuffer of(float[] values) {
    ByteBuffer memory = scratch(4L * values.length);
    memory.asFloatBuffer().put(values);
    return memory;
  }

  static ByteBuffer of(double[] values) {
    ByteBuffer memory = scratch(8L * values.length);
    memory.asDoubleBuffer().put(values);
    return memory;
  }

  static void checkInterrupt(String where) throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException("interrupted in " + where);
    }
  }
}
