// SPDX-License-Identifier: Apache-2.0
/* R: a condition of class megadp_error with code, name, rank, bucket, param and operation; conditionMessage() is the sentence. */
%{
extern "C" {
LibExtern int R_interrupts_pending;
}

// Only looks: the wrapper jumps, when the call that it ends has come back.
static int32_t megadp_interrupted(void*) { return R_interrupts_pending; }

static void megadp_stop(const megadp::Failure& failure) {
  static const char* const names[] = {"message", "call", "code", "name", "rank", "bucket", "param", "operation"};
  static const char* const classes[] = {"megadp_error", "error", "condition"};
  SEXP condition = PROTECT(Rf_allocVector(VECSXP, 8));
  SEXP labels = PROTECT(Rf_allocVector(STRSXP, 8));
  SEXP kinds = PROTECT(Rf_allocVector(STRSXP, 3));
  for (int i = 0; i < 8; ++i) SET_STRING_ELT(labels, i, Rf_mkChar(names[i]));
  for (int i = 0; i < 3; ++i) SET_STRING_ELT(kinds, i, Rf_mkChar(classes[i]));
  SET_VECTOR_ELT(condition, 0, Rf_ScalarString(Rf_mkCharCE(failure.text, CE_UTF8)));
  SET_VECTOR_ELT(condition, 2, Rf_ScalarInteger(failure.code));
  SET_VECTOR_ELT(condition, 3, Rf_mkString(failure.name()));
  SET_VECTOR_ELT(condition, 4, Rf_ScalarInteger(failure.rank));
  SET_VECTOR_ELT(condition, 5, Rf_ScalarInteger(failure.bucket));
  SET_VECTOR_ELT(condition, 6, Rf_ScalarReal(static_cast<double>(failure.param)));
  SET_VECTOR_ELT(condition, 7, Rf_ScalarReal(static_cast<double>(failure.operation)));
  Rf_setAttrib(condition, R_NamesSymbol, labels);
  Rf_setAttrib(condition, R_ClassSymbol, kinds);
  SEXP call = PROTECT(Rf_lang2(Rf_install("stop"), condition));
  Rf_eval(call, R_BaseEnv);  // does not return
}
%}
%rename(next_piece) megadp::Step::next; // next is a word of R
/* As `freearg`, which comes last, too: with an `argout` SWIG would take the failure for a second result. */
%typemap(freearg) megadp::Failure& failure {
  if ($1->failed() && R_interrupts_pending) R_CheckUserInterrupt();
  if ($1->failed()) megadp_stop(*$1);
}
%init %{
  megadp::interrupted_in_language() = megadp_interrupted;
%}
MEGADP_WAIT_BETWEEN(R_CheckUserInterrupt())
