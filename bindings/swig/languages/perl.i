// SPDX-License-Identifier: Apache-2.0
/* Perl: $@ becomes a megadp::Error, a hash with code, name, text, rank, bucket, param and operation that reads as a sentence. */
%{
static SV* megadp_error(pTHX_ const megadp::Failure& failure) {
  HV* fields = newHV();
  (void)hv_stores(fields, "code", newSViv(failure.code));
  (void)hv_stores(fields, "name", newSVpv(failure.name(), 0));
  SV* text = newSVpv(failure.text, 0);
  sv_utf8_decode(text);
  (void)hv_stores(fields, "text", text);
  (void)hv_stores(fields, "rank", newSViv(failure.rank));
  (void)hv_stores(fields, "bucket", newSViv(failure.bucket));
  (void)hv_stores(fields, "param", newSViv(failure.param));
  (void)hv_stores(fields, "operation", newSViv(failure.operation));
  return sv_bless(newRV_noinc(reinterpret_cast<SV*>(fields)), gv_stashpv("megadp::Error", GV_ADD));
}

// Runs the handlers of signals that have come; what one of them dies of is kept until the call that it ends has come back.
static SV* megadp_died = NULL;
static int32_t megadp_interrupted(void*) {
  dTHX;
  if (!PL_sig_pending) return 0;
  dSP;
  ENTER;
  SAVETMPS;
  PUSHMARK(SP);
  PUTBACK;
  call_pv("megadp::_run_handlers", G_EVAL | G_VOID | G_DISCARD | G_NOARGS);
  const bool died = SvTRUE(ERRSV);
  if (died) megadp_died = newSVsv(ERRSV);
  FREETMPS;
  LEAVE;
  return died;
}
%}
%init %{
  megadp::interrupted_in_language() = megadp_interrupted;
%}
%perlcode %{
sub _run_handlers { for (1, 2) { } } # between two turns
# All classes have these. What Perl sees of an object is an address: a copy of it, in a file or another thread, would outlive what lies there.
sub STORABLE_freeze { die "a " . ref($_[0]) . " is memory of this process: Storable can neither save nor clone it\n" }
sub CLONE_SKIP { 1 }
package megadp::Error;
use overload '""' => sub { "$_[0]{name}: $_[0]{text}" }, fallback => 1;
package megadp;
%}
%typemap(argout) megadp::Failure& failure {
  if ($1->failed()) {
    sv_setsv(ERRSV, sv_2mortal(megadp_died != NULL ? megadp_died : megadp_error(aTHX_ *$1)));
    megadp_died = NULL;
    SWIG_fail;
  }
}
MEGADP_WAIT_BETWEEN(PERL_ASYNC_CHECK())
// SWIG's own takes undef and elements that are not there for memory, knows no numbers that were read as text, and leaves its list behind where
// it croaks: here the wrapper does, when it has freed it.
%typemap(in) const std::vector<double>& (std::vector<double> list) {
  if (!SvROK($input) || SvTYPE(SvRV($input)) != SVt_PVAV) {
    SWIG_exception_fail(SWIG_TypeError, "$1_name of $symname must be a reference to an array of numbers");
  }
  AV* const array = reinterpret_cast<AV*>(SvRV($input));
  for (SSize_t i = 0; i <= av_len(array); ++i) {
    SV** const element = av_fetch(array, i, 0);
    if (element == NULL || !looks_like_number(*element)) {
      SWIG_Error(SWIG_TypeError, Perl_form(aTHX_ "$1_name of $symname: element %ld is no number", static_cast<long>(i)));
      SWIG_fail;
    }
    list.push_back(SvNV(*element));
  }
  $1 = &list;
}
%typemap(freearg) const std::vector<double>& "std::vector<double>().swap(list$argnum);"
%typemap(check) SWIGTYPE *self {
  if (!$1) SWIG_exception_fail(SWIG_TypeError, "self of $symname is undef; it must be a $1_basetype");
}
