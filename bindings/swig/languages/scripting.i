// SPDX-License-Identifier: Apache-2.0
/* The languages whose arrays are lists of numbers. Buffer.sync and Request.wait look after the interpreter's signals between slices of 50 ms,
   where it has a way to ask for them: a language's file then repeats the loop around MEGADP_BETWEEN_SLICES, in the wrapper itself, so that a
   jump out of it leaves nothing behind. */
%ignore megadp::Memory;
%define MEGADP_WAIT_BETWEEN(CHECK)
%exception megadp::Buffer::sync {
  while (!arg1->sync_slice(*arg2)) {
    CHECK;
  }
}
%exception megadp::Request::wait {
  while (!arg1->wait_slice(*arg2) && !arg2->failed()) {
    CHECK;
  }
}
%enddef

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
}
%extend megadp::Request {
  void wait(megadp::Failure& failure) {
    while (!$self->wait_slice(failure) && !failure.failed()) continue;
  }
}
