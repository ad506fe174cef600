// SPDX-License-Identifier: Apache-2.0
/* How values cross between Java and the shim: text as UTF-8 (JNI's own is another encoding), memory as direct ByteBuffers, failures as
   exceptions. */
%{
namespace {

jbyteArray megadp_text(JNIEnv* env, const char* text, size_t length) {
  jbyteArray bytes = env->NewByteArray(static_cast<jsize>(length));
  if (bytes) env->SetByteArrayRegion(bytes, 0, static_cast<jsize>(length), reinterpret_cast<const jbyte*>(text));
  return bytes;
}

// NULL, with an exception of Java's own pending, where there is no memory for it.
jobject megadp_exception(JNIEnv* env, const megadp::Failure& failure) {
  jclass type = env->FindClass("megadp/MegaDPException");
  jmethodID constructor = type ? env->GetMethodID(type, "<init>", "(I[BIIJJ)V") : nullptr;
  jbyteArray text = constructor ? megadp_text(env, failure.text, strlen(failure.text)) : nullptr;
  if (!text) return nullptr;
  return env->NewObject(type, constructor, static_cast<jint>(failure.code), text, static_cast<jint>(failure.rank),
                        static_cast<jint>(failure.bucket), static_cast<jlong>(failure.param), static_cast<jlong>(failure.operation));
}

void megadp_throw(JNIEnv* env, const megadp::Failure& failure) {
  if (env->ExceptionCheck()) return;
  if (jobject exception = megadp_exception(env, failure)) env->Throw(static_cast<jthrowable>(exception));
}

}  // namespace
%}

%typemap(argout) megadp::Failure& failure {
  if ($1->failed()) megadp_throw(jenv, *$1);
}

/* lost(): null while there is nothing to report. */
%typemap(jni) megadp::Failure* "jobject"
%typemap(jtype) megadp::Failure* "MegaDPException"
%typemap(jstype) megadp::Failure* "MegaDPException"
%typemap(javaout) megadp::Failure* { return $jnicall; }
%typemap(out) megadp::Failure* {
  $result = $1 && $1->failed() ? megadp_exception(jenv, *$1) : NULL;
  delete $1;
}

%naturalvar std::string;
namespace std {
class string;
}
%typemap(jni) std::string, const std::string& "jbyteArray"
%typemap(jtype) std::string, const std::string& "byte[]"
%typemap(jstype) std::string, const std::string& "String"
%typemap(javain) const std::string& "Direct.utf8($javainput, \"$1_name\")"
%typemap(javaout) std::string, const std::string& { return Direct.text($jnicall); }
%typemap(in) const std::string& (std::string text) %{
  text.resize(static_cast<size_t>(jenv->GetArrayLength($input)));
  jenv->GetByteArrayRegion($input, 0, static_cast<jsize>(text.size()), reinterpret_cast<jbyte*>(&text[0]));
  $1 = &text;
%}
%typemap(out) std::string %{ $result = megadp_text(jenv, $1.data(), $1.size()); %}
%typemap(out) const std::string& %{ $result = megadp_text(jenv, $1->data(), $1->size()); %}

/* Memory of the caller's: from its position to its limit. Direct.checked refuses what has no address. */
%typemap(jni) (const unsigned char* from, long long from_bytes), (unsigned char* to, long long to_bytes) "jobject"
%typemap(jtype) (const unsigned char* from, long long from_bytes), (unsigned char* to, long long to_bytes) "java.nio.ByteBuffer"
%typemap(jstype) (const unsigned char* from, long long from_bytes), (unsigned char* to, long long to_bytes) "java.nio.ByteBuffer"
%typemap(javain) (const unsigned char* from, long long from_bytes) "Direct.checked($javainput, \"from\", false)"
%typemap(javain) (unsigned char* to, long long to_bytes) "Direct.checked($javainput, \"to\", true)"
%typemap(in) (const unsigned char* from, long long from_bytes), (unsigned char* to, long long to_bytes) %{
  $1 = static_cast<unsigned char*>(jenv->GetDirectBufferAddress($input));
  $2 = static_cast<long long>(jenv->GetDirectBufferCapacity($input));
%}

/* The same that may be null: what is not given, or not wanted. */
%define MEGADP_OPTIONAL_MEMORY(TYPE, NAME, WRITTEN)
%typemap(jni) (TYPE* NAME, long long NAME ## _bytes) "jobject"
%typemap(jtype) (TYPE* NAME, long long NAME ## _bytes) "java.nio.ByteBuffer"
%typemap(jstype) (TYPE* NAME, long long NAME ## _bytes) "java.nio.ByteBuffer"
%typemap(javain) (TYPE* NAME, long long NAME ## _bytes) "Direct.optional($javainput, \"NAME\", WRITTEN)"
%typemap(in) (TYPE* NAME, long long NAME ## _bytes) %{
  $1 = $input ? static_cast<unsigned char*>(jenv->GetDirectBufferAddress($input)) : NULL;
  $2 = $input ? static_cast<long long>(jenv->GetDirectBufferCapacity($input)) : 0;
%}
%enddef
MEGADP_OPTIONAL_MEMORY(const unsigned char, input, false)
MEGADP_OPTIONAL_MEMORY(const unsigned char, weight, false)
MEGADP_OPTIONAL_MEMORY(const unsigned char, bias, false)
MEGADP_OPTIONAL_MEMORY(const unsigned char, grad_output, false)
MEGADP_OPTIONAL_MEMORY(unsigned char, output, true)
MEGADP_OPTIONAL_MEMORY(unsigned char, grad_input, true)
MEGADP_OPTIONAL_MEMORY(unsigned char, grad_weight, true)
MEGADP_OPTIONAL_MEMORY(unsigned char, grad_bias, true)
MEGADP_OPTIONAL_MEMORY(const unsigned char, ids, false)
MEGADP_OPTIONAL_MEMORY(const unsigned char, logits, false)
MEGADP_OPTIONAL_MEMORY(const unsigned char, targets, false)
MEGADP_OPTIONAL_MEMORY(const unsigned char, saved, false)
MEGADP_OPTIONAL_MEMORY(const unsigned char, grad_losses, false)
MEGADP_OPTIONAL_MEMORY(unsigned char, losses, true)
MEGADP_OPTIONAL_MEMORY(unsigned char, saved, true)
MEGADP_OPTIONAL_MEMORY(unsigned char, grad_logits, true)
MEGADP_OPTIONAL_MEMORY(unsigned char, field, true)

/* A list of parameters. */
%typemap(jni) (const long long* params, long long count) "jlongArray"
%typemap(jtype) (const long long* params, long long count) "long[]"
%typemap(jstype) (const long long* params, long long count) "long[]"
%typemap(javain) (const long long* params, long long count) "Direct.checked($javainput, \"params\")"
%typemap(in) (const long long* params, long long count) %{
  static_assert(sizeof(jlong) == sizeof(long long), "a Java long is a long long");
  $2 = jenv->GetArrayLength($input);
  jlong* $1_elements = jenv->GetLongArrayElements($input, NULL);
  if (!$1_elements) return $null;
  $1 = reinterpret_cast<long long*>($1_elements);
%}
%typemap(freearg) (const long long* params, long long count) %{
  jenv->ReleaseLongArrayElements($input, reinterpret_cast<jlong*>(const_cast<long long*>($1)), JNI_ABORT);
%}

/* Numbers for the caller's array. */
%typemap(jni) (long long* order, long long count) "jlongArray"
%typemap(jtype) (long long* order, long long count) "long[]"
%typemap(jstype) (long long* order, long long count) "long[]"
%typemap(javain) (long long* order, long long count) "Direct.checked($javainput, \"order\")"
%typemap(in) (long long* order, long long count) %{
  $2 = jenv->GetArrayLength($input);
  jlong* $1_elements = jenv->GetLongArrayElements($input, NULL);
  if (!$1_elements) return $null;
  $1 = reinterpret_cast<long long*>($1_elements);
%}
%typemap(freearg) (long long* order, long long count) %{
  jenv->ReleaseLongArrayElements($input, reinterpret_cast<jlong*>($1), 0);
%}

/* Memory of the library's. A ByteBuffer's sizes are ints. */
%typemap(jni) megadp::Memory "jobject"
%typemap(jtype) megadp::Memory "java.nio.ByteBuffer"
%typemap(jstype) megadp::Memory "java.nio.ByteBuffer"
%typemap(javaout) megadp::Memory { return $jnicall; }
%typemap(out) megadp::Memory %{
  static unsigned char nothing;
  if ($1.bytes > INT_MAX) {
    megadp::Failure too_large;
    too_large.refuse(MDP_E_UNSUPPORTED, "a ByteBuffer holds at most 2147483647 bytes, not %lld; View.memory(firstByte, bytes) gives parts", $1.bytes);
    megadp_throw(jenv, too_large);
    $result = NULL;
  } else {
    $result = jenv->NewDirectByteBuffer($1.bytes ? $1.data : &nothing, static_cast<jlong>($1.bytes));
  }
%}
