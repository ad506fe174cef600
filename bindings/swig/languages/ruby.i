// SPDX-License-Identifier: Apache-2.0
/* Ruby: Megadp::Error, and every call without the interpreter's lock, so that other threads run while one waits for ranks. */
%{
#include <ruby/thread.h>

template <class Call>
static void megadp_without_lock(Call& call) {
  rb_thread_call_without_gvl(
      [](void* it) -> void* {
        (*static_cast<Call*>(it))();
        return NULL;
      },
      &call, RUBY_UBF_IO, NULL);
}

// Runs what has come for this thread (signals, Thread#raise); what that raises goes on when the call that it ends has come back.
static thread_local int megadp_raised = 0;
static VALUE megadp_check(VALUE) {
  rb_thread_check_ints();
  return Qnil;
}
static void* megadp_check_with_lock(void*) {
  rb_protect(megadp_check, Qnil, &megadp_raised);
  return NULL;
}
static int32_t megadp_interrupted(void*) {
  rb_thread_call_with_gvl(megadp_check_with_lock, NULL);
  return megadp_raised != 0;
}
static void megadp_go_on_raising() {
  const int raised = megadp_raised;
  megadp_raised = 0;
  if (raised != 0) rb_jump_tag(raised);
}

// dup and clone of what has `copy` are its copy; Ruby's own would have nothing in it.
static VALUE megadp_initialize_copy(VALUE self, VALUE from) {
  if (self == from) return self;
  VALUE made = rb_funcall(from, rb_intern("copy"), 0);
  DATA_PTR(self) = DATA_PTR(made);
  DATA_PTR(made) = NULL;
  RB_GC_GUARD(made);
  return self;
}
static void megadp_define_copies() {
  for (size_t i = 0; i < swig_module.size; ++i) {
    const swig_class* const known = static_cast<const swig_class*>(swig_types[i]->clientdata);
    if (known == NULL || strncmp(swig_types[i]->name, "_p_megadp__", 11) != 0) continue;
    if (rb_method_boundp(known->klass, rb_intern("copy"), 0)) {
      rb_define_private_method(known->klass, "initialize_copy", VALUEFUNC(megadp_initialize_copy), 1);
    } else {
      rb_undef_method(known->klass, "dup");
      rb_undef_method(known->klass, "clone");
    }
  }
}

static VALUE megadp_error_class = Qnil;

static void megadp_raise(const megadp::Failure& failure) {
  VALUE text = rb_utf8_str_new_cstr(failure.text);
  VALUE error = rb_class_new_instance(1, &text, megadp_error_class);
  rb_iv_set(error, "@code", INT2NUM(failure.code));
  rb_iv_set(error, "@name", rb_utf8_str_new_cstr(failure.name()));
  rb_iv_set(error, "@rank", INT2NUM(failure.rank));
  rb_iv_set(error, "@bucket", INT2NUM(failure.bucket));
  rb_iv_set(error, "@param", LL2NUM(failure.param));
  rb_iv_set(error, "@operation", LL2NUM(failure.operation));
  rb_exc_raise(error);
}
%}
%init %{
  megadp::interrupted_in_language() = megadp_interrupted;
  megadp_error_class = rb_define_class_under(mMegadp, "Error", rb_eStandardError);
  static const char* const megadp_attributes[] = {"code", "name", "rank", "bucket", "param", "operation"};
  for (const char* attribute : megadp_attributes) rb_define_attr(megadp_error_class, attribute, 1, 0);
%}

%exception {
  auto megadp_call = [&]() { $action };
  megadp_without_lock(megadp_call);
  megadp_go_on_raising();
}
%define MEGADP_IN_SLICES(METHOD, SLICE)
%exception megadp::METHOD {
  bool finished = false, again = false;
  auto slice = [&]() { finished = SLICE; };
  for (megadp_without_lock(slice); !finished; megadp_without_lock(slice)) {
    rb_thread_check_ints();
    again = true;
  }
  (void)again;  // not all slices take it
}
%enddef
MEGADP_IN_SLICES(Buffer::sync, arg1->sync_slice(*arg2))
MEGADP_IN_SLICES(Buffer::broadcast, %arg(arg1->broadcast_slice(arg2, again, *arg3)))
MEGADP_IN_SLICES(Comm::barrier, arg1->barrier_slice(again, *arg2))
MEGADP_IN_SLICES(Request::wait, arg1->wait_slice(*arg2) || arg2->failed())
// As `freearg`, which comes last: raising jumps over what would free the lists that the call was given.
%typemap(freearg) megadp::Failure& failure {
  if ($1->failed()) megadp_raise(*$1);
}
