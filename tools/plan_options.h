// SPDX-License-Identifier: Apache-2.0
// The parameters that `megadp plan` is asked about, from a command line, a list in a file, or the header of a model's file.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/param.h"

namespace megadp::tool {

// As many as mdp_plan takes.
constexpr size_t kMostParams = size_t{1} << 24;

// A whole number from 0 on, and nothing else.
bool read_number(std::string_view word, uint64_t most, uint64_t* out);

// "@FILE" and "-" (standard input) name a list; what follows # in its lines does not count. `where` names the line, for a sentence.
bool is_list(const std::string& given);
std::string name_of_list(const std::string& given);
using TakeLine = std::function<Status(std::string_view line, const std::string& where)>;
Status read_list(const std::string& option, const std::string& given, const TakeLine& take);
// Takes it off the front; empty: there is none.
std::string_view next_word(std::string_view* line);

// "1000,500,300": names are the numbers from 0 on. A list: a parameter a line, "1000", "1000x500" or
// "NAME 1000x500"; empty lines do not count.
Result<std::vector<ParamSpec>> read_sizes(const std::string& given, DType dtype);

// What a model's file says of itself.
struct ModelFile {
  std::vector<ParamSpec> params;  // in the order of the header, files in the order of the index
  size_t left_out = 0;            // tensors of whole numbers or truth values: nothing to train
};
// A .safetensors file; or, where the name ends in .json, the index of a model in several files, which are looked for beside it.
// `dtype`: empty, or what takes the place of every type that the file states.
Result<ModelFile> read_model(const std::string& path, const std::string& dtype);

}  // namespace megadp::tool
