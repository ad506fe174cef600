// SPDX-License-Identifier: Apache-2.0
// Failures as the caller sees them: one record per thread, and the functions that read it.
#include "api/error.h"

#include <cstring>
#include <string_view>

#include "api/intake.h"
#include "base/utf8.h"

namespace megadp {

namespace {

// Plain bytes without a destructor: finalizers may still call the library while their thread is being torn down.
struct Record {
  Code code = Code::ok;
  Blame blame;
  char text[4096] = "";
};
thread_local Record last;

// What does not fit is cut off between characters. Bytes that are no UTF-8 (a sentence may quote an environment variable, or a name that
// another rank cut) become '?': bindings may take the text for valid.
template <size_t capacity>
void copy_text(std::string_view text, char (&to)[capacity]) noexcept {
  size_t end = 0;
  while (!text.empty()) {
    const size_t length = utf8_sequence(text);
    const size_t taken = length == 0 ? 1 : length;
    if (end + taken >= capacity) break;
    std::memcpy(to + end, length == 0 ? "?" : text.data(), taken);
    end += taken;
    text.remove_prefix(taken);
  }
  to[end] = '\0';
}

void remember(Code code, const Blame& blame, std::string_view text) noexcept {
  if (static_cast<int32_t>(code) >= 0) return;
  last.code = code;
  last.blame = blame;
  copy_text(text, last.text);
}

void fill(Code code, const Blame& blame, std::string_view text, mdp_error_info* out) noexcept {
  *out = {};
  out->struct_size = sizeof *out;
  out->status = static_cast<mdp_status>(code);
  out->rank = blame.rank;
  out->bucket = blame.bucket;
  out->param = blame.param;
  out->operation = blame.operation;
  copy_text(text, out->text);
}

}  // namespace

mdp_status remember(const Status& status) noexcept {
  if (!status.ok()) remember(status.code(), status.blame(), status.text());
  return static_cast<mdp_status>(status.code());
}

mdp_status remember(Code code, const char* sentence) noexcept {
  remember(code, Blame{}, sentence);
  return static_cast<mdp_status>(code);
}

void fill_error_info(const Status& status, mdp_error_info* out) noexcept {
  fill(status.code(), status.blame(), status.text(), out);
}

}  // namespace megadp

using namespace megadp;

const char* mdp_status_name(mdp_status status) {
  return code_name(static_cast<Code>(status));
}

const char* mdp_last_error(void) {
  return last.text;
}

mdp_status mdp_last_error_info(mdp_error_info* out) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    mdp_error_info info;
    fill(last.code, last.blame, last.text, &info);
    give(info, out);
    return {};
  });
}
