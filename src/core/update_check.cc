// SPDX-License-Identifier: Apache-2.0
#include "core/update_check.h"

#include <cstring>

namespace megadp {

const float* UpdateCheck::array(size_t number) const {
  if (number == names_.size()) return piece_.grad;
  return number == 0 ? piece_.master : piece_.state[number - 1];
}

UpdatePiece UpdateCheck::half(uint64_t begin, uint64_t end) const {
  UpdatePiece half = piece_;
  half.begin += begin;
  half.count = end - begin;
  half.master = copy(0) + begin;
  for (size_t k = 0; k < piece_.states; ++k) half.state[k] = copy(k + 1) + begin;
  half.grad = copy(names_.size()) + begin;
  return half;
}

Result<std::unique_ptr<UpdateCheck>> UpdateCheck::begin(Backend& backend, const UpdatePiece& piece, std::vector<std::string> names) {
  std::unique_ptr<UpdateCheck> check(new UpdateCheck(backend, piece, std::move(names)));
  const size_t arrays = check->names_.size() + 1;
  auto memory = backend.allocate(arrays * piece.count * sizeof(float));
  if (!memory) return memory.status();
  check->memory_ = *std::move(memory);
  std::vector<float> values(piece.count);
  for (size_t number = 0; number < arrays; ++number) {
    if (Status read = backend.read(values.data(), check->array(number), values.size() * sizeof(float)); !read) return read;
    if (Status written = backend.write(check->copy(number), values.data(), values.size() * sizeof(float)); !written) return written;
  }
  const uint64_t middle = piece.count / 2;
  check->halves_[0] = check->half(0, middle);
  check->halves_[1] = check->half(middle, piece.count);
  return check;
}

Status UpdateCheck::compare() const {
  std::vector<float> whole(piece_.count), halves(piece_.count);
  for (size_t number = 0; number < names_.size(); ++number) {
    if (Status read = backend_.read(whole.data(), array(number), whole.size() * sizeof(float)); !read) return read;
    if (Status read = backend_.read(halves.data(), copy(number), halves.size() * sizeof(float)); !read) return read;
    for (uint64_t i = 0; i < piece_.count; ++i) {
      if (std::memcmp(&whole[i], &halves[i], sizeof(float)) == 0) continue;
      return Status(
          Code::invalid,
          text("its update is not element-wise: element ", piece_.begin + i, " of ", names_[number], " is ", whole[i], ", and ", halves[i],
               " where the piece is updated in two halves; register the parameter with MDP_SHARDING_WHOLE (4), which gives the "
               "update all of it"),
          Blame{.param = static_cast<int64_t>(piece_.param)});
    }
  }
  return {};
}

}  // namespace megadp
