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
%}
%perlcode %{
package megadp::Error;
use overload '""' => sub { "$_[0]{name}: $_[0]{text}" }, fallback => 1;
package megadp;
%}
%typemap(argout) megadp::Failure& failure {
  if ($1->failed()) {
    sv_setsv(ERRSV, sv_2mortal(megadp_error(aTHX_ *$1)));
    SWIG_fail;
  }
}
MEGADP_WAIT_BETWEEN(PERL_ASYNC_CHECK())
