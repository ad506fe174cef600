// SPDX-License-Identifier: Apache-2.0
/* R: a condition of class megadp_error with code, name, rank, bucket, param and operation; conditionMessage() is the sentence. */
%{
#include <cmath>
#include <vector>

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

/* SWIG 4.1's own conversions for R free only what constructors made, leave a copy of every list behind, take any object for any other, and
   cut whole numbers to 32 bits. These are in their place. One that refuses says so by SWIG_Error and gives false: the wrapper jumps later,
   when it has left its block, so that nothing is left behind. */
template <class Type>
static void megadp_delete(SEXP object) {
  Type* const it = static_cast<Type*>(R_ExternalPtrAddr(object));
  R_ClearExternalPtr(object);
  delete it;
}

// An object of R's, which is deleted with it where `finalizer` is given.
static SEXP megadp_new_object(void* it, swig_type_info* type, R_CFinalizer_t finalizer) {
  if (it == NULL) return R_NilValue;
  SEXP tag = PROTECT(R_MakeExternalPtr(type, R_NilValue, R_NilValue));
  SEXP object = PROTECT(R_MakeExternalPtr(it, tag, R_NilValue));
  if (finalizer != NULL) R_RegisterCFinalizerEx(object, finalizer, FALSE);
  SET_S4_OBJECT(object);
  UNPROTECT(2);
  return object;
}

// "Buffer" of "megadp::Buffer *".
static std::string megadp_class(const swig_type_info* type) {
  std::string name = SWIG_TypePrettyName(type);
  if (name.compare(0, 8, "megadp::") == 0) name.erase(0, 8);
  return name.substr(0, name.find(' '));
}

static std::string megadp_what(SEXP value) {
  char number[64];
  if (value == R_NilValue) return "NULL";
  if (Rf_isObject(value) || !(TYPEOF(value) == INTSXP || TYPEOF(value) == REALSXP || TYPEOF(value) == LGLSXP)) {
    return std::string("of type ") + Rf_type2char(TYPEOF(value)) + (Rf_isObject(value) ? ", with a class of its own" : "");
  }
  if (Rf_xlength(value) != 1) {
    snprintf(number, sizeof number, "a vector of length %.0f", static_cast<double>(Rf_xlength(value)));
  } else if (ISNA(Rf_asReal(value))) {
    return "NA";
  } else {
    snprintf(number, sizeof number, "%.17g", Rf_asReal(value));
  }
  return number;
}

static bool megadp_refuse(const char* argument, const char* call, const std::string& what, const std::string& wanted) {
  if (strncmp(argument, "s_", 2) == 0) argument += 2;  // SWIG's mark of a name that R has, too
  SWIG_Error(SWIG_TypeError, "%s of %s is %s; it must be %s", argument, call, what.c_str(), wanted.c_str());
  return false;
}

// Not its first element alone, nor what another type becomes as a text.
static bool megadp_text(SEXP value, const char* call, const char* argument, std::string* found) {
  std::string what = megadp_what(value), wanted = "one text, a character vector of length 1";
  if (TYPEOF(value) == STRSXP && !Rf_isObject(value)) {
    what = Rf_xlength(value) == 1 ? "NA" : "a vector of length " + std::to_string(Rf_xlength(value));
    if (Rf_xlength(value) == 1 && STRING_ELT(value, 0) != NA_STRING) {
      found->assign(CHAR(STRING_ELT(value, 0)));
      return true;
    }
  } else if (TYPEOF(value) == RAWSXP) {
    wanted += "; an object becomes one by rawToChar(serialize(x, NULL, ascii = TRUE))";
  }
  return megadp_refuse(argument, call, what, wanted);
}

// The type that this module has given an external pointer; NULL: it is another package's, whose tag may be anything.
static swig_type_info* megadp_type_of(SEXP object) {
  SEXP tag = R_ExternalPtrTag(object);
  const void* const type = TYPEOF(tag) == EXTPTRSXP ? R_ExternalPtrAddr(tag) : NULL;
  for (size_t i = 0; type != NULL && i < swig_module.size; ++i) {
    if (swig_types[i] == type) return swig_types[i];
  }
  return NULL;
}

// No class of megadp's is derived from another. What is to be deleted may be gone: a finalizer comes after delete, too.
static bool megadp_object(SEXP value, swig_type_info* wanted, bool to_delete, const char* call, const char* argument, void** found) {
  const std::string needed = "of class " + megadp_class(wanted);
  if (TYPEOF(value) != EXTPTRSXP) return megadp_refuse(argument, call, megadp_what(value), needed);
  *found = R_ExternalPtrAddr(value);
  if (*found == NULL) {
    const char* const gone = "an object that is gone (deleted, or saved and loaded: objects end with their process)";
    return to_delete || megadp_refuse(argument, call, gone, needed);
  }
  const swig_type_info* const type = megadp_type_of(value);
  if (type == NULL) return megadp_refuse(argument, call, "another package's object", needed);
  return type == wanted || megadp_refuse(argument, call, "of class " + megadp_class(type), needed);
}

static bool megadp_is_number(SEXP value) {
  return (TYPEOF(value) == INTSXP || TYPEOF(value) == REALSXP) && !Rf_isObject(value) && Rf_xlength(value) == 1;
}

static bool megadp_number(SEXP value, const char* call, const char* argument, double* found) {
  if (!megadp_is_number(value)) return megadp_refuse(argument, call, megadp_what(value), "one number");
  *found = Rf_asReal(value);
  return true;
}

static bool megadp_truth(SEXP value, const char* call, const char* argument, bool* found) {
  const bool good = TYPEOF(value) == LGLSXP && Rf_xlength(value) == 1 && LOGICAL(value)[0] != NA_LOGICAL;
  *found = good && LOGICAL(value)[0];
  return good || megadp_refuse(argument, call, megadp_what(value), "TRUE or FALSE");
}

static bool megadp_whole(SEXP value, double least, double most, const char* range, const char* call, const char* argument,
                         long long* found) {
  const double number = megadp_is_number(value) ? Rf_asReal(value) : NAN;
  if (!(number >= least && number <= most && number == std::floor(number))) {
    return megadp_refuse(argument, call, megadp_what(value), std::string("one whole number from ") + range);
  }
  *found = static_cast<long long>(number);
  return true;
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

%typemap(in, noblock=1) SWIGTYPE *(void *argp = NULL), SWIGTYPE &(void *argp = NULL), const SWIGTYPE &(void *argp = NULL) {
  if (!megadp_object($input, $descriptor, ($disown) != 0, "$symname", "$input", &argp)) SWIG_fail;
  $1 = reinterpret_cast<$1_ltype>(argp);
}
%typemap(freearg) const SWIGTYPE & ""
%typemap(out, noblock=1) SWIGTYPE * {
  $result = megadp_new_object(SWIG_as_voidptr($1), $descriptor, ($owner) != 0 ? megadp_delete<$*1_ltype> : NULL);
}
%typemap(out, noblock=1) SWIGTYPE {
  $result = megadp_new_object(new $1_ltype($1), $&1_descriptor, megadp_delete<$1_ltype>);
}

/* R has no integers of 64 bits: its doubles are exact up to 2^53. */
%typemap(rtype) long long "numeric"
%typemap(scoercein) long long, int ""
%typemap(in, noblock=1) long long {
  if (!megadp_whole($input, -9007199254740992.0, 9007199254740992.0, "-2^53 to 2^53", "$symname", "$input", &$1)) SWIG_fail;
}
%typemap(in, noblock=1) int (long long whole = 0) {
  if (!megadp_whole($input, -2147483648.0, 2147483647.0, "-2^31 to 2^31 - 1", "$symname", "$input", &whole)) SWIG_fail;
  $1 = static_cast<int>(whole);
}
%typemap(out) long long "$result = Rf_ScalarReal(static_cast<double>($1));"
%typemap(in, noblock=1) double {
  if (!megadp_number($input, "$symname", "$input", &$1)) SWIG_fail;
}
%typemap(in, noblock=1) bool {
  if (!megadp_truth($input, "$symname", "$input", &$1)) SWIG_fail;
}

%typemap(scoercein) const std::string& ""
%typemap(in, noblock=1) const std::string& (std::string text) {
  if (!megadp_text($input, "$symname", "$input", &text)) SWIG_fail;
  $1 = &text;
}
%typemap(in, noblock=1) const std::string& directory (std::string text), const std::string& path (std::string text) {
  if (!megadp_text($input, "$symname", "$input", &text)) SWIG_fail;
  text = R_ExpandFileName(text.c_str());  // "~", as R's own functions take it
  $1 = &text;
}
%typemap(freearg) const std::string& "std::string().swap(text$argnum);"

/* A list's memory goes before the failure's `freearg`, which may jump. */
%typemap(in, noblock=1) const std::vector<double>& (std::vector<double> list) {
  list.assign(REAL($input), REAL($input) + Rf_xlength($input));
  $1 = &list;
}
%typemap(freearg) const std::vector<double>& "std::vector<double>().swap(list$argnum);"
%typemap(out) std::vector<double> %{
  $result = Rf_allocVector(REALSXP, static_cast<R_xlen_t>((&$1)->size()));
  std::copy((&$1)->begin(), (&$1)->end(), REAL($result));
  $1 = std::vector<double>();
%}
%typemap(scoercein) const std::vector<double>& "$input = megadp_list($input, \"$input\");"
%insert("s") %{
megadp_list = function(values, name)
{
  if (length(dim(values)) > 1) {
    stop(name, " has ", length(dim(values)), " dimensions, and lies in R's memory column by column; lists here are row by row: ",
         "give as.numeric(t(x)) of a matrix x, as.numeric(aperm(x)) of another array", call. = FALSE)
  }
  numbers = if (is.list(values)) all(vapply(values, function(value) is.numeric(value) && length(value) == 1, NA))
            else is.null(values) || is.numeric(values) || is.logical(values)
  if (!numbers) stop(name, " is of class ", class(values)[1], "; it must be a vector of numbers", call. = FALSE)
  as.numeric(values)
}

# In the place of SWIG's own, which asks each class for a method that is not there.
megadp_define_print = function(where)
{
  for (each in sub(".__C__", "", ls(where, all.names = TRUE, pattern = "^\\.__C___p_(megadp|std)__"), fixed = TRUE)) {
    setMethod("show", each, function(object) cat("<", sub(".*__", "", class(object)), " of megadp>\n", sep = ""), where = where)
    setMethod("print", each, function(x, ...) show(x), where = where)
  }
}
megadp_define_print(environment())

# In the place of SWIG's own, which goes on with a name that is none.
enumToInteger = function(name, type)
{
  values = get(paste(".__E__", type, sep = ""))
  if (!is.character(name) || length(name) != 1 || !(name %in% names(values))) {
    stop(deparse(name)[1], " is no ", sub(".*__", "", type), "; it must be one of ", toString(dQuote(names(values), FALSE)), call. = FALSE)
  }
  as.integer(values[name])
}
%}
