// SPDX-License-Identifier: Apache-2.0
/* Tcl: errorCode is the list MEGADP name code rank bucket param operation. */
%{
static void megadp_set_error(Tcl_Interp* interp, const megadp::Failure& failure) {
  Tcl_Obj* code = Tcl_NewListObj(0, NULL);
  Tcl_ListObjAppendElement(interp, code, Tcl_NewStringObj("MEGADP", -1));
  Tcl_ListObjAppendElement(interp, code, Tcl_NewStringObj(failure.name(), -1));
  const long long numbers[] = {failure.code, failure.rank, failure.bucket, failure.param, failure.operation};
  for (long long number : numbers) Tcl_ListObjAppendElement(interp, code, Tcl_NewWideIntObj(number));
  Tcl_SetObjErrorCode(interp, code);
  Tcl_SetObjResult(interp, Tcl_NewStringObj(failure.text, -1));
}

// The result of a handler that failed stays the interpreter's until the call that it ends has come back.
static thread_local Tcl_Interp* megadp_interp = NULL;
static thread_local bool megadp_handler_failed = false;
static int32_t megadp_interrupted(void*) {
  if (megadp_interp == NULL || !Tcl_AsyncReady()) return 0;
  megadp_handler_failed = Tcl_AsyncInvoke(megadp_interp, TCL_OK) != TCL_OK;
  return megadp_handler_failed;
}
%}
%init %{
  megadp_interp = interp;
  megadp::interrupted_in_language() = megadp_interrupted;
%}
%typemap(argout) megadp::Failure& failure {
  if ($1->failed()) {
    if (!megadp_handler_failed) megadp_set_error(interp, *$1);
    megadp_handler_failed = false;
    SWIG_fail;
  }
}
// "~", as Tcl's own commands take it.
%typemap(in) const std::string& directory (std::string text), const std::string& path (std::string text) {
  int length = 0;
  const char* const given = Tcl_GetStringFromObj($input, &length);
  text.assign(given, static_cast<size_t>(length));
  if (given[0] == '~') {
    Tcl_DString expanded;
    if (Tcl_TranslateFileName(interp, given, &expanded) == NULL) SWIG_fail;
    text = Tcl_DStringValue(&expanded);
    Tcl_DStringFree(&expanded);
  }
  $1 = &text;
}
%typemap(freearg) const std::string& directory, const std::string& path ""
// NULL is what a call gives where there is nothing (a split with a negative color, the end of a Step), and a null pointer to SWIG.
%typemap(check) SWIGTYPE *, SWIGTYPE & {
  if (!$1) {
    Tcl_SetObjResult(interp, Tcl_NewStringObj("$1_name of $symname is NULL; it must be a $1_basetype", -1));
    SWIG_fail;
  }
}
MEGADP_WAIT_BETWEEN(if (Tcl_AsyncReady() && Tcl_AsyncInvoke(interp, TCL_OK) != TCL_OK) return TCL_ERROR)
