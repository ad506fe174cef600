// SPDX-License-Identifier: Apache-2.0
/* Java: exceptions of class MegaDPException, direct ByteBuffers, names and enumerations as Java has them, and objects whose native side is
   freed when they are unreachable; close() only drops the library's handle, so that a closed object answers with an exception. */
%include "enums.swg"
%include "java_types.i"

%rename("%(lowercamelcase)s", %$isfunction) "";
%rename("%(lowercamelcase)s", %$isvariable) "";
%rename(await) megadp::Buffer::wait;
%rename(awaitAll) megadp::Buffer::wait_all;
%rename(waitSlice) megadp::Request::wait_slice;
%rename(paramView) megadp::Buffer::param;
%rename(gradView) megadp::Buffer::grad;
%rename(ownedGradView) megadp::Buffer::owned_grad;
%rename(stateView) megadp::Optimizer::state;
%rename(scaleView) megadp::Optimizer::scale;
%rename(masterView) megadp::UpdatePiece::master;
%rename(gradView) megadp::UpdatePiece::grad;
%rename(stateView) megadp::UpdatePiece::state;
%rename(arrayView) megadp::Halo::array;
%rename(paramStateView) megadp::UpdatePiece::param_state;
%rename(fillUseOrder) megadp::Buffer::use_order;
%ignore megadp::Failure;
%ignore megadp::Memory;
%javamethodmodifiers megadp::Buffer::sync_slice "private";
%javamethodmodifiers megadp::Comm::barrier_slice "private";
%javamethodmodifiers megadp::Buffer::broadcast_slice "private";
%javamethodmodifiers megadp::Request::wait_slice "private";
%javamethodmodifiers megadp::Buffer::create "private";
%javamethodmodifiers megadp::Buffer::use_order "private";

%pragma(java) jniclasscode=%{
  static {
    NativeLibrary.load();
  }
%}

%typemap(javainterfaces) megadp::Comm, megadp::Grid, megadp::Buffer, megadp::Optimizer, megadp::Request, megadp::Step,
               megadp::TpLinear, megadp::TpSaved, megadp::Halo "AutoCloseable"
%typemap(javabody) SWIGTYPE %{
  private final long swigCPtr;

  $javaclassname(long cPtr, boolean cMemoryOwn) {
    swigCPtr = cPtr;
    if (cMemoryOwn) {
      Unreachable.then(this, releaser(cPtr));
    }
  }

  private static Runnable releaser(long cPtr) { // static, so that it does not refer to the object it waits for
    return () -> $imclassname.delete_$javaclassname(cPtr);
  }

  static long getCPtr($javaclassname object) {
    return object == null ? 0 : object.swigCPtr;
  }
%}
%typemap(javabody) megadp::Library, megadp::Plan, megadp::Checkpoint, megadp::TensorParallel %{
  private $javaclassname() {}
%}
%typemap(javafinalize) SWIGTYPE ""
%typemap(javadestruct, methodname="unused", methodmodifiers="private") SWIGTYPE "{}"
%typemap(javadestruct, methodname="unused", methodmodifiers="private") megadp::Library, megadp::Plan, megadp::Checkpoint, megadp::TensorParallel ""

%typemap(javacode) megadp::Comm %{
  /** The world, from the launcher's environment, with all defaults. Collective over the ranks of the job. */
  public static Comm create() {
    return create(new CommOptions());
  }

  /** Returns when all ranks have called it. Collective; blocking. After an interrupt, calling it again goes on waiting, if no other
   * operation was begun on this communicator, or on what is made on it, since; otherwise a new one begins. */
  public void barrier() throws InterruptedException {
    for (boolean again = false; !barrierSlice(again); again = true) {
      Direct.checkInterrupt("Comm.barrier");
    }
  }

  /** In place: every rank's array becomes the sums (or what op says), computed in an order that is always the same. Collective. */
  public void allReduce(float[] values, Op op) {
    java.nio.ByteBuffer direct = Direct.of(values);
    allReduce(DType.F32, direct, direct, op);
    direct.asFloatBuffer().get(values);
  }

  /** The same in float64. */
  public void allReduce(double[] values, Op op) {
    java.nio.ByteBuffer direct = Direct.of(values);
    allReduce(DType.F64, direct, direct, op);
    direct.asDoubleBuffer().get(values);
  }
%}
%typemap(javacode) megadp::Param %{
  /** A parameter of this shape; everything else at its default. */
  public static Param of(String name, long... shape) {
    Param param = new Param(name);
    for (long size : shape) {
      param.addDimension(size);
    }
    return param;
  }
%}
%typemap(javacode) megadp::Params %{
  /** In the order of the forward pass. */
  public static Params of(Param... params) {
    Params list = new Params();
    for (Param param : params) {
      list.add(param);
    }
    return list;
  }
%}
%typemap(javacode) megadp::View %{
  /** All of it, in native byte order: for .asFloatBuffer() and the like. It keeps the library's memory alive, whatever is closed. */
  public java.nio.ByteBuffer memory() {
    return memory(0, size() * Direct.elementSize(dtype()));
  }

  /** A part of it, for views beyond the 2 GiB of a ByteBuffer. */
  public java.nio.ByteBuffer memory(long firstByte, long bytes) {
    java.nio.ByteBuffer lent = lend(firstByte, bytes);
    Unreachable.keepUntil(lent, this);
    return lent.order(java.nio.ByteOrder.nativeOrder());
  }
%}
%rename(lend) megadp::View::memory;
%javamethodmodifiers megadp::View::memory "private";

%typemap(javacode) megadp::Request %{
  /** Blocks until the operation has finished; throws its failure. An interrupt ends the wait, not the operation. Any thread. */
  public void await() throws InterruptedException {
    while (!waitSlice()) {
      Direct.checkInterrupt("Request.await");
    }
  }
%}
%typemap(javacode) megadp::Buffer %{
  /** On a communicator, whose ranks are all data parallel. Collective over it, with the same registration on all ranks. */
  public static Buffer create(Comm comm, Params params) {
    return createOn(comm, params, new BufferOptions());
  }

  public static Buffer create(Comm comm, Params params, BufferOptions options) {
    return createOn(comm, params, options);
  }

  public static Buffer create(Grid grid, Params params, BufferOptions options) {
    return createOn(grid, params, options);
  }

  /** Ends backward: the gradients of all ranks are reduced, and the ranks agree on what was missing. Collective; blocking. After an
   * interrupt, calling it again goes on waiting. */
  public void sync() throws InterruptedException {
    while (!syncSlice()) {
      Direct.checkInterrupt("Buffer.sync");
    }
  }

  /** Rank root's parameters for all ranks of each data-parallel group. Collective; blocking. After an interrupt, calling it again goes on
   * waiting, as Comm.barrier. */
  public void broadcast(int root) throws InterruptedException {
    for (boolean again = false; !broadcastSlice(root, again); again = true) {
      Direct.checkInterrupt("Buffer.broadcast");
    }
  }

  /**
   * Of each parameter the Param.setUseOrder with which the last synced step's gradients would have filled bucket after bucket; for the next
   * time that they are registered. Collective over the world.
   */
  public int[] useOrder() {
    long[] order = new long[(int) size()];
    fillUseOrder(order);
    return java.util.Arrays.stream(order).mapToInt(i -> (int) i).toArray();
  }

  /** Copies a gradient into its slot and counts it as ready. The array may be used again when this returns. Any thread. */
  public void put(long param, float[] grad) {
    put(param, DType.F32, Direct.of(grad), false, false);
  }

  /** Copies a parameter into the array, after the last step. */
  public void read(long param, float[] to) {
    java.nio.ByteBuffer direct = Direct.scratch(4L * to.length);
    read(param, DType.F32, direct);
    direct.asFloatBuffer().get(to);
  }

  /** Gives a parameter new values, the same on all ranks of the data-parallel group. */
  public void write(long param, float[] from) {
    write(param, DType.F32, Direct.of(from));
  }

  /** The library's memory of a parameter; see View.memory. */
  public java.nio.ByteBuffer param(long param) {
    return paramView(param).memory();
  }

  /** The library's memory of a gradient; see View.memory. */
  public java.nio.ByteBuffer grad(long param) {
    return gradView(param).memory();
  }

  /** The library's memory of what this rank owns of a reduced gradient, between sync and the step; see View.memory. */
  public java.nio.ByteBuffer ownedGrad(long param) {
    return ownedGradView(param).memory();
  }
%}
%rename(createOn) megadp::Buffer::create;
%rename(createOn) megadp::Buffer::create_on;
%javamethodmodifiers megadp::Buffer::create_on "private";
%typemap(javacode) megadp::Optimizer %{
  /** A step with all defaults; see step(StepOptions). */
  public StepReport step() {
    return step(new StepOptions());
  }

  /** What the loss is to be multiplied by, as the last step has left it, which is waited for. */
  public double scale() {
    return scaler().getScale();
  }

  /** The library's memory of the owned piece of a parameter's "master", or of what the rule keeps: "exp_avg", "exp_avg_sq", "momentum_buffer". */
  public java.nio.ByteBuffer state(long param, String name) {
    return stateView(param, name).memory();
  }

  /** Begins a step whose update is the caller's, with all defaults; see beginStep(StepOptions). */
  public Step beginStep() {
    return beginStep(new StepOptions());
  }
%}
%typemap(javacode) megadp::UpdatePiece %{
  /** What is to be updated: the library's memory of the owned piece of the parameter, until the Step's next piece or its end. */
  public java.nio.ByteBuffer master() {
    return masterView().memory();
  }

  /** Its gradient, divided and clipped, for reading; as long as master. */
  public java.nio.ByteBuffer grad() {
    return gradView().memory().asReadOnlyBuffer().order(java.nio.ByteOrder.nativeOrder());
  }

  /** The optimizer's arrays of state, from 0 on as they were added; to be updated, as master. */
  public java.nio.ByteBuffer state(long index) {
    return stateView(index).memory();
  }

  /** The bytes that the optimizer keeps of this parameter, from 0 on as they were added; to be updated, as master. */
  public java.nio.ByteBuffer paramState(long index) {
    return paramStateView(index).memory();
  }
%}
%typemap(javacode) megadp::Halo %{
  /** The library's memory of one of its padded arrays; see View.memory. */
  public java.nio.ByteBuffer array(long index) {
    return arrayView(index).memory();
  }
%}
%typemap(javacode) megadp::Optimizers %{
  /** Those of one buffer, each with parameter groups of its own. */
  public static Optimizers of(Optimizer... optimizers) {
    Optimizers list = new Optimizers();
    for (Optimizer optimizer : optimizers) {
      list.add(optimizer);
    }
    return list;
  }
%}
