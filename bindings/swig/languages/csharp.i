// SPDX-License-Identifier: Apache-2.0
/* C#: MegaDPException (MegaDPException.cs), names as C# has them. Dispose closes; what is native is freed by the finalizer alone, so that a
   disposed object answers with an exception. */
%include "enumtypesafe.swg" // their values come from the compiler
%rename("%(camelcase)s", %$isfunction) "";
%rename("%(camelcase)s", %$isvariable) "";
%rename(GroupComm) megadp::Grid::comm; // Comm is a class
%rename(LossScaler) megadp::Optimizer::scaler; // and so is Scaler

%{
typedef void(SWIGSTDCALL* megadp_failure_callback)(int code, const char* name, const char* text, int rank, int bucket, long long param,
                                                   long long operation);
static megadp_failure_callback megadp_failed = NULL;
extern "C" SWIGEXPORT void SWIGSTDCALL megadp_on_failure(megadp_failure_callback callback) { megadp_failed = callback; }
%}
%pragma(csharp) imclasscode=%{
  class FailureHelper {
    public delegate void Callback(int code, string name, string text, int rank, int bucket, long param, long operation);
    static Callback callback = new Callback(Failed); // referred to as long as the native side may call it
    [global::System.Runtime.InteropServices.DllImport("$dllimport", EntryPoint="megadp_on_failure")]
    static extern void Register(Callback callback);
    static void Failed(int code, string name, string text, int rank, int bucket, long param, long operation) {
      SWIGPendingException.Set(new MegaDPException(code, name, text, rank, bucket, param, operation));
    }
    static FailureHelper() { Register(callback); }
  }
  static FailureHelper failureHelper = new FailureHelper();
%}
%typemap(argout, canthrow=1) megadp::Failure& failure {
  if ($1->failed()) megadp_failed($1->code, $1->name(), $1->text, $1->rank, $1->bucket, $1->param, $1->operation);
}

/* A text crosses as what ends with a NUL: one with a NUL in it would be cut there. */
%typemap(csin) const std::string& "MegaDPException.Whole($csinput, \"$1_name\")"
%typemap(out, canthrow=1) std::string %{
  if ($1.find('\0') != std::string::npos) {
    megadp_failed(MDP_E_UNSUPPORTED, mdp_status_name(MDP_E_UNSUPPORTED), "these bytes have a NUL among them, where a string would be cut", -1, -1, -1, 0);
    return 0;
  }
  $result = SWIG_csharp_string_callback($1.c_str());
%}

%typemap(csdispose) megadp::Comm, megadp::Grid, megadp::Buffer, megadp::Optimizer, megadp::Request, megadp::Step, megadp::TpLinear, megadp::TpSaved, megadp::Halo %{
  ~$csclassname() {
    Dispose(false);
  }

  public void Dispose() {
    Close();
  }
%}
%typemap(csdispose) SWIGTYPE %{
  ~$csclassname() {
    Dispose(false);
  }

  public void Dispose() {} // small objects of ours; the finalizer frees them
%}
