// SPDX-License-Identifier: Apache-2.0
namespace MegaDP {
  /// A call of the library failed. Rank (in the world), Bucket and Param are -1 and Operation is 0 where they are not what it is about.
  public class MegaDPException : System.Exception {
    public readonly int Code;
    public readonly string Name;
    public readonly string Text;
    public readonly int Rank;
    public readonly int Bucket;
    public readonly long Param;
    public readonly long Operation;

    internal static string Whole(string text, string argument) {
      if (text != null && text.IndexOf('\0') >= 0) {
        throw new System.ArgumentException("has a NUL in it, where it would be cut", argument);
      }
      return text;
    }

    internal MegaDPException(int code, string name, string text, int rank, int bucket, long param, long operation)
        : base(name + ": " + text) {
      Code = code;
      Name = name;
      Text = text;
      Rank = rank;
      Bucket = bucket;
      Param = param;
      Operation = operation;
    }
  }
}
