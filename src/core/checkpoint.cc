// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint.h"

#include <algorithm>

namespace megadp {

const CheckpointPart& CheckpointConfig::part_of(const Buffer& buffer, size_t param) const {
  const CheckpointPart* first = nullptr;
  for (const CheckpointPart& part : parts) {
    if (part.buffer.get() != &buffer) continue;
    if (part.optimizer && part.optimizer->covers(param)) return part;
    if (first == nullptr) first = &part;
  }
  return *first;
}

bool CheckpointConfig::is_first_of_buffer(const CheckpointPart& part) const {
  return &*std::find_if(parts.begin(), parts.end(), [&](const CheckpointPart& each) { return each.buffer == part.buffer; }) == &part;
}

Status compare_checkpoint_configs(const CheckpointConfig& config, const char* call) {
  std::string mine = text("directory '", config.directory, "', keep ", config.keep, ", parameters only ", config.params_only ? "yes" : "no",
                          ", load hyperparameters ", config.load_hyper ? "yes" : "no", ", optimizers");
  for (const CheckpointPart& part : config.parts) mine += part.optimizer ? " 1" : " 0";
  for (const std::string& pattern : config.optional) mine += text(", optional '", pattern, "'");
  auto compared = config.context().world->compare(config.members(), call, mine);
  if (!compared) return compared.status();
  if (!*compared) return {};
  const Mismatch& found = **compared;
  return Status(Code::desync,
                text(call, ": ranks ", found.first, " and ", found.other, " ask for different things: ", found.first_bytes, "; and ",
                     found.other_bytes),
                Blame{.rank = found.other});
}

Status copy_tensor(const CheckpointConfig& config, const CheckpointTensor& tensor, std::span<std::byte> dense, Copy direction) {
  StridedArray array = tensor.array;
  array.data = dense.data();
  array.strides = dense_strides(array.shape);
  Backend& backend = tensor.where == DeviceType::cpu ? config.context().backend->control() : *config.context().backend;
  return direction == Copy::to_dense ? backend.copy(array, tensor.array, false, nullptr)
                                     : backend.copy(tensor.array, array, false, nullptr);
}

}  // namespace megadp
