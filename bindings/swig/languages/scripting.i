// SPDX-License-Identifier: Apache-2.0
/* The languages whose arrays are lists of numbers. What waits in slices of 50 ms (Buffer.sync and broadcast, Comm.barrier, Request.wait) looks
   after the interpreter's signals between them, where it has a way to ask for them: a language's file then repeats the loop by
   MEGADP_WAIT_BETWEEN, in the wrapper itself, so that a jump out of it leaves nothing behind. */
%ignore megadp::Memory;
%define MEGADP_WAIT_BETWEEN(CHECK)
%exception megadp::Buffer::sync {
  while (!arg1->sync_slice(*arg2)) {
    CHECK;
  }
}
%exception megadp::Buffer::broadcast {
  for (bool again = false; !arg1->broadcast_slice(arg2, again, *arg3); again = true) {
    CHECK;
  }
}
%exception megadp::Comm::barrier {
  for (bool again = false; !arg1->barrier_slice(again, *arg2); again = true) {
    CHECK;
  }
}
%exception megadp::Request::wait {
  while (!arg1->wait_slice(*arg2) && !arg2->failed()) {
    CHECK;
  }
}
%enddef

/* Another object with the same values: what a language's own ways to copy make (R, Ruby). */
%define MEGADP_COPY(CLASS)
%newobject megadp::CLASS::copy;
%extend megadp::CLASS {
  megadp::CLASS* copy() { return new megadp::CLASS(*$self); }
}
%enddef
MEGADP_COPY(CommOptions)
MEGADP_COPY(GridOptions)
MEGADP_COPY(Counts)
MEGADP_COPY(Param)
MEGADP_COPY(Params)
MEGADP_COPY(BufferOptions)
MEGADP_COPY(ParamGroup)
MEGADP_COPY(OptimizerOptions)
MEGADP_COPY(Scaler)
MEGADP_COPY(StepOptions)
MEGADP_COPY(CheckpointOptions)
MEGADP_COPY(TpLinearOptions)
MEGADP_COPY(TpRegionOptions)
MEGADP_COPY(TpEmbeddingOptions)
MEGADP_COPY(TpCrossEntropyOptions)
MEGADP_COPY(HaloOptions)
MEGADP_COPY(ConvOptions)

#if defined(SWIGLUA)
%include "languages/lua.i"
#elif defined(SWIGRUBY)
%include "languages/ruby.i"
#elif defined(SWIGPERL)
%include "languages/perl.i"
#elif defined(SWIGTCL)
%include "languages/tcl.i"
#elif defined(SWIGCSHARP)
%include "languages/csharp.i"
#elif defined(SWIGR)
%include "languages/r.i"
#endif

%extend megadp::Buffer {
  void sync(megadp::Failure& failure) {
    while (!$self->sync_slice(failure)) continue;
  }
  void broadcast(int root, megadp::Failure& failure) {
    for (bool again = false; !$self->broadcast_slice(root, again, failure); again = true) continue;
  }
}
%extend megadp::Comm {
  void barrier(megadp::Failure& failure) {
    for (bool again = false; !$self->barrier_slice(again, failure); again = true) continue;
  }
}
%extend megadp::Request {
  void wait(megadp::Failure& failure) {
    while (!$self->wait_slice(failure) && !failure.failed()) continue;
  }
}
