// SPDX-License-Identifier: Apache-2.0
// What test_scripting.py runs with 1 and 2 ranks: a line, fitted; the failures; views. Every rank prints the same.
using System;
using System.Globalization;
using MegaDP;

static class Smoke {
  static string Fails(string what, Action call) {
    try {
      call();
    } catch (MegaDPException error) {
      Console.WriteLine("{0} {1} {2} {3}", what, error.Name, error.Param, error.Rank);
      return error.Text;
    }
    throw new Exception(what + " does not fail");
  }

  static Doubles One(double value) {
    return new Doubles(new double[] {value});
  }

  static void Train(Comm comm, MegaDP.Buffer buffer, Optimizer optimizer) {
    int rank = comm.Rank(), ranks = comm.Size();
    for (int step = 0; step < 40; step++) {
      double w = buffer.Read(0)[0], b = buffer.Read(1)[0], gradW = 0, gradB = 0;
      for (int i = rank; i < 64; i += ranks) {
        double x = i / 32.0 - 1, e = w * x + b - (2 * x - 1);
        gradW += e * x / 32 * ranks;
        gradB += e / 32 * ranks;
      }
      buffer.Put(1, One(gradB));
      buffer.Put(0, One(gradW));
      optimizer.Step(new StepOptions());
    }
  }

  static void Reduced(MegaDP.Buffer buffer) {
    var both = new Doubles(new double[] {0, 1});
    double all = buffer.GradNorm(), first = buffer.GradNormOf(One(0));
    buffer.ScaleGradsOf(0.5, One(1));
    double half = buffer.GradNormOf(One(1)), none = buffer.GradNormOf(new Doubles());
    buffer.ScaleGrads(2);
    double twice = buffer.GradNorm();
    buffer.Grad(0).Set(0, 0);
    buffer.GradsChanged();
    Console.WriteLine("norm {0:F2} {1:F2} {2:F2} {3:F2} {4:F2} {5:F2}", all, first, half, none, twice, buffer.GradNormOf(both));
    Fails("listed", () => buffer.GradNormOf(One(7)));
  }

  // A checkpoint brings back what was saved.
  static void Restored(MegaDP.Buffer buffer, Optimizer optimizer, int rank, string directory) {
    double saved = buffer.Read(0)[0];
    var about = new CheckpointOptions();
    about.SharedData = "all";
    about.RankData = "r" + rank;
    about.Keep = 1;
    Checkpoint.Save(directory, buffer, optimizer, about);
    buffer.Write(0, One(99));
    optimizer.SetSteps(1);
    Checkpoint.Load(directory, buffer, optimizer, new CheckpointOptions());
    Console.WriteLine("restored {0} {1} {2} {3}", buffer.Read(0)[0] == saved ? 1 : 0, optimizer.Steps(1), Checkpoint.Data(directory, -1),
        Checkpoint.Data(directory, 0));
    if (!Checkpoint.Info(directory).Contains("checkpoint-000001")) throw new Exception("unnamed");
    Fails("absent", () => Checkpoint.Info(directory + "/absent"));
  }

  // Two buffers, one of them without an optimizer, and an array of this program's own in one checkpoint.
  static void Parts(Comm comm, MegaDP.Buffer buffer, Optimizer optimizer, string directory) {
    double saved = buffer.Read(0)[0];
    var parts = new CheckpointParts();
    var late = new Params();
    var mean = new Param("mean");
    mean.AddDimension(2);
    late.Add(new Param("late"));
    using (var second = MegaDP.Buffer.Create(comm, late, new BufferOptions())) {
      View memory = parts.AddTensor(mean);
      parts.Add(buffer, optimizer);
      parts.AddBuffer(second);
      memory.SetValues(new Doubles(new double[] {3, 4}));
      second.Write(0, One(6));
      parts.Save(directory, new CheckpointOptions());
      parts.StartSave(directory, new CheckpointOptions()).Wait();
      memory.SetValues(new Doubles(new double[] {0, 0}));
      second.Write(0, One(0));
      buffer.Write(0, One(99));
      parts.Load(directory, new CheckpointOptions());
      Console.WriteLine("parts {0} {1} {2}", buffer.Read(0)[0] == saved ? 1 : 0, memory.Get(1), second.Read(0)[0]);
      mean.AddDimension(-1);
      Fails("sized", () => parts.AddTensor(mean));
    }
  }

  static void Named(Comm comm, MegaDP.Buffer buffer) {
    int rank = comm.Rank(), ranks = comm.Size();
    var reversed = comm.Split(0, -rank);
    Console.WriteLine("names {0} {1} {2} {3}", buffer.Find("b"), buffer.Find("w"), buffer.Buckets(), reversed.WorldRank(0) - (ranks - 1));
    Fails("unknown", () => buffer.Find("v"));
    buffer.Write(0, One(7 + rank));
    buffer.Broadcast(0);
    using (var request = buffer.StartBroadcast(ranks - 1)) request.Wait();
    using (var request = comm.StartBarrier()) request.Wait();
    var options = new OptimizerOptions();
    options.Lr = 0;
    var still = Optimizer.Create(buffer, options);
    buffer.Put(1, One(1));
    buffer.Put(0, One(1));
    still.Step(new StepOptions());
    Console.WriteLine("value {0}", buffer.Read(0)[0]);
  }

  // Sent as bf16 and checked; and in which order gradients came.
  static void Checked(Comm comm) {
    var sent = new BufferOptions();
    sent.WireDtype = DType.BF16;
    sent.ErrorFeedback = sent.CheckFinite = sent.CheckLarge = true;
    var pair = new Params();
    foreach (var name in new[] {"v", "u"}) {
      var param = new Param(name);
      param.AddDimension(1);
      param.UseOrder = name == "v" ? 1 : 0;
      pair.Add(param);
    }
    var buffer = MegaDP.Buffer.Create(comm, pair, sent);
    buffer.Put(0, One(1));
    buffer.Put(1, One(comm.Rank() == comm.Size() - 1 ? double.PositiveInfinity : 1));
    if (!Fails("numeric", () => buffer.Sync()).Contains("'u'")) throw new Exception("unnamed");
    var scaled = new StepOptions();
    scaled.LossScale = 2;
    bool skipped = Optimizer.Create(buffer, new OptimizerOptions()).Step(scaled).Skipped;
    buffer.Put(0, One(1));
    buffer.Put(1, One(1));
    buffer.Sync();
    var order = buffer.UseOrder();
    Console.WriteLine("sent {0} {1} {2} {3}", skipped ? 1 : 0, order[0], order[1], buffer.Stats().LargeGradients);
  }

  // A step whose gradients are put and written where they go, with so many optimizer instances: what it leaves.
  static string ShardedStep(Comm comm, Sharding sharding, int instances) {
    bool zero2 = sharding == Sharding.ZERO_2;
    int rank = comm.Rank();
    var layers = new Params();
    foreach (var name in new[] {"lower", "upper"}) {
      var param = new Param(name);
      param.AddDimension(3);
      layers.Add(param);
    }
    var sharded = new BufferOptions();
    sharded.Sharding = sharding;
    sharded.BucketElements = 1;
    sharded.PoolBuckets = zero2 ? 2 : 0;
    var cut = new GridOptions();
    cut.Instances = instances;
    var pooled = MegaDP.Buffer.CreateOn(Grid.Create(comm, cut), layers, sharded);
    var adam = Optimizer.Create(pooled, new OptimizerOptions());
    var lent = pooled.Acquire(1);
    if (!lent.First() || lent.Size() != 3) throw new Exception("first");
    lent.SetValues(new Doubles(new double[] {9, 9, 9}));
    if (zero2) {
      Fails("view", () => pooled.Grad(0));
      Fails("lent", () => pooled.Put(1, new Doubles(new double[] {1, 2, 3})));
    }
    pooled.Release(1);
    if (zero2) Fails("released", () => lent.Get(0));
    lent = pooled.Acquire(1);
    lent.SetValues(new Doubles(new double[] {1 / 3.0 + rank, 2 / 3.0, 3 / 7.0}));
    pooled.Ready(1);
    pooled.Put(0, new Doubles(new double[] {1 / 7.0, rank / 3.0, -1 / 9.0}));
    pooled.Sync();
    double size = 0;
    for (int i = 0; i < 2; i++) {
      var owned = pooled.OwnedGrad(i);
      var twice = new Doubles();
      foreach (double value in owned.Values()) twice.Add(2 * value);
      owned.SetValues(twice);
      size += owned.Size();
    }
    size = comm.AllReduce(One(size), Op.SUM)[0] / instances;
    pooled.GradsChanged();
    string found = pooled.GradNorm().ToString("R") + " " + size;
    adam.Step(new StepOptions());
    for (int i = 0; i < 2; i++) {
      foreach (double value in pooled.Read(i)) found += " " + value.ToString("R");
    }
    if (zero2) Console.WriteLine("pooled {0} {1}", size, pooled.Stats().SpillPeakBytes);
    return found;
  }

  static void Main() {
    CultureInfo.DefaultThreadCurrentCulture = CultureInfo.CurrentCulture = CultureInfo.InvariantCulture;
    var comm = Comm.Create(new CommOptions());
    int rank = comm.Rank(), ranks = comm.Size();
    var list = new Params();
    foreach (var name in new[] {"w", "b"}) {
      var param = new Param(name);
      param.AddDimension(1);
      list.Add(param);
    }
    var buffer = MegaDP.Buffer.Create(comm, list, new BufferOptions());
    var options = new OptimizerOptions();
    options.Lr = 0.1;
    var optimizer = Optimizer.Create(buffer, options);
    Train(comm, buffer, optimizer);
    Console.WriteLine("fit {0:F2} {1:F2}", buffer.Read(0)[0], buffer.Read(1)[0]);
    Console.WriteLine("sum {0}", comm.AllReduce(One(rank + 1), Op.SUM)[0] - ranks * (ranks + 1) / 2);

    buffer.Put(1, One(1));
    if (rank < ranks - 1) buffer.Put(0, One(1));
    if (!Fails("missing", () => buffer.Sync()).Contains("'w'")) throw new Exception("unnamed");
    Fails("bad", () => buffer.Put(7, One(1)));
    Fails("shape", () => buffer.Put(1, new Doubles(new double[] {1, 2})));
    buffer.BeginMicrobatch(true);
    buffer.Put(1, One(1));
    buffer.Put(0, One(1));
    using (var request = buffer.StartSync()) request.Wait();
    Reduced(buffer);
    Console.WriteLine("steps {0} {1}", optimizer.Step(new StepOptions()).Step, optimizer.Steps(1));
    optimizer.SetSteps(100);
    long before = optimizer.Steps(1);
    var counts = new Counts();
    counts.Add(9);
    counts.Add(7);
    optimizer.SetStepsOf(9, counts);
    Console.WriteLine("set {0} {1} {2}", before, optimizer.Steps(1), optimizer.Info().Substring(9, 5));
    buffer.WaitAll();
    Restored(buffer, optimizer, rank, Environment.GetEnvironmentVariable("MEGADP_CHECKPOINTS"));
    Parts(comm, buffer, optimizer, Environment.GetEnvironmentVariable("MEGADP_CHECKPOINTS") + "/parts");
    Named(comm, buffer);
    Checked(comm);
    string one = ShardedStep(comm, Sharding.ZERO_1, 1), two = ShardedStep(comm, Sharding.ZERO_2, 1);
    Console.WriteLine("zero2 {0}", one == two ? "same" : one + " and " + two);
    string cut = ShardedStep(comm, Sharding.ZERO_1, ranks);
    Console.WriteLine("instances {0}", one == cut ? "same" : one + " and " + cut);
    comm.Barrier(); // a rank whose program ends must have been needed for the last time
    var view = buffer.Param(1);
    buffer.Dispose();
    comm.Dispose();
    if (!Fails("closed", () => buffer.Read(0)).Contains("is closed")) throw new Exception("open");
    view.Set(0, 5.5);
    GC.Collect();
    GC.WaitForPendingFinalizers();
    Console.WriteLine("view {0}", view.Get(0));
  }
}
