// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file, the index of a model in several, and a whole file with checksums or of a model, as it is opened and
// read: an input is a file, whose first byte says which of them follows.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/shape.h"
#include "base/text.h"
#include "files/checksum.h"
#include "files/model_files.h"
#include "files/safetensors_file.h"
#include "fuzz.h"

using namespace megadp;
using namespace megadp::test;

namespace {

// What is wrong, without the words and numbers of the input.
std::string refused(const Status& status) {
  must(status.code() == Code::corrupt && !status.text().empty(), "bad input is not Code::corrupt, with a sentence");
  std::string words;
  bool quoted = false;
  for (const char c : status.text()) {
    quoted ^= c == '\'';
    if (!quoted) words += c;
  }
  return words;
}

std::string run_index(std::string_view json) {
  const auto index = parse_safetensors_index(json);
  if (!index) return refused(index.status());
  must(!index->files.empty() && index->files.size() <= index->file_of.size(), "as many files as tensors at most");
  for (const std::string& file : index->files) must(!file.empty() && file.find('/') == std::string::npos, "a file that is elsewhere");
  return text("an index of ", index->files.size());
}

// A file in memory, the same one every time: a reader opens it by a name.
Folder open_files() {
  auto folder = Folder::open("/proc/self/fd");
  must(folder.ok(), "/proc/self/fd cannot be opened");
  return *std::move(folder);
}

int file_of(std::string_view content) {
  static const int fd = ::memfd_create("fuzzed", MFD_CLOEXEC);
  must(fd >= 0 && ::ftruncate(fd, 0) == 0, "no file in memory");
  must(::pwrite(fd, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()), "a file in memory cannot be written");
  return fd;
}

// Where the data begins.
size_t front_of(std::string_view content) {
  const auto length = safetensors_header_bytes(content.substr(0, 8));
  return length ? static_cast<size_t>(std::min<uint64_t>(8 + *length, content.size())) : 0;
}

std::string read_all(Result<SafetensorsReader> reader, std::string_view content) {
  if (!reader) return refused(reader.status());
  for (const StoredTensor& tensor : reader->tensors()) {
    must(reader->find(tensor.name) == &tensor, "a tensor that is not found");
    uint64_t got = 0;
    const auto type = dtype_of_stored(tensor.dtype);
    const size_t element = type ? size_of(*type) : 1;
    const Status read = reader->read(tensor.begin, tensor.end, element, [&](const char* data, size_t bytes) {
      const std::string_view expected = content.substr(front_of(content) + tensor.begin + got, bytes);
      must(std::string_view(data, bytes) == expected && bytes % element == 0, "bytes that are not the file's");
      got += bytes;
      return Status();
    });
    if (!read) return refused(read);
    must(got == tensor.end - tensor.begin, "fewer bytes than the tensor's");
  }
  return text("a file of ", reader->tensors().size());
}

std::string run_file(std::string_view content) {
  static const Folder folder = open_files();
  // The header's checksum is right: what lies behind it is to be reached.
  const WrittenFile written{content.size(), checksum(content.data(), front_of(content))};
  return read_all(SafetensorsReader::open(folder, std::to_string(file_of(content)), written), content);
}

std::string run_model(std::string_view content) {
  static const Folder folder = open_files();
  const std::string name = std::to_string(file_of(content));
  const auto model = open_model(text(folder.path(), "/", name));
  auto reader = SafetensorsReader::open_model(folder, name);
  must(model.ok() == reader.ok(), "a model that is no file, or the other way round");
  if (model) {
    const std::vector<StoredTensor>& tensors = reader->tensors();
    must(model->manifest.arrays.size() == tensors.size(), "arrays that are not the tensors");
    for (size_t i = 0; i < tensors.size(); ++i) must(model->manifest.arrays[i].name == tensors[i].name, "an array that is not the tensor");
  }
  return "as a model, " + read_all(std::move(reader), content);
}

std::string run(const std::string& input) {
  Bytes bytes(input);
  const char kind = bytes.number<char>();
  if (kind == 'i') return run_index(bytes.rest());
  if (kind == 'f') return run_file(bytes.rest());
  if (kind == 'm') return run_model(bytes.rest());
  const auto length = safetensors_header_bytes(bytes.some(8));
  if (!length) return refused(length.status());
  must(*length <= kLongestHeader, "a header that is too long");
  const auto header = parse_safetensors_header(bytes.some(*length));
  if (!header) return refused(header.status());
  for (const StoredTensor& tensor : header->tensors) {
    uint64_t elements = 0;
    size_t at = 0;
    must(count_elements(tensor.shape, INT64_MAX / 8, &elements, &at), "more elements than can be counted");
    must(tensor.end >= tensor.begin && (elements == 0 || (tensor.end - tensor.begin) % elements == 0), "bytes that are not the elements'");
  }
  return text("a header of ", header->tensors.size());
}

std::string file(const std::string& header) {
  return "h" + bytes_of(static_cast<uint64_t>(header.size())) + header;
}

// With its data, and a checksum of them.
std::string with_checksums(char kind, const std::string& tensors, const std::string& data) {
  std::string digits;
  if (!data.empty()) append_digits(&digits, checksum(data.data(), data.size()));
  std::string whole = file(R"({"__metadata__":{"megadp.checksums":")" + digits + "\"}" + tensors + "}") + data;
  whole[0] = kind;
  return whole;
}

std::string model(const std::string& header, const std::string& data) {
  std::string whole = file(header) + data;
  whole[0] = 'm';
  return whole;
}

const std::string kGood = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

}  // namespace

int main(int argc, char** argv) {
  return fuzz(
      argc, argv,
      {{file("{}"), file(R"({"a":)" + kGood + "}"),
        file(R"({"__metadata__":{"format":"pt"},"a":)" + kGood + R"(,"b\u0000":)" + kGood + "}"),
        file(R"({"a":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},"b":{"dtype":"I64","shape":[0,7],"data_offsets":[0,0]}})"),
        with_checksums('f', "", ""),
        with_checksums('f', R"(,"a":)" + kGood + R"(,"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]})", "12345678abc"),
        model(
            R"({"__metadata__":{"b":"a"},"c":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"a":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})",
            "abc12345678"),
        with_checksums('m', R"(,"a":)" + kGood, "12345678"),
        R"(i{"metadata":{"total_size":60,"more":[1,null,true,0.5,-1]},"weight_map":{"c":"2.safetensors","a":"1.safetensors"}})"},
       with_json(
           {kGood, "\"shape\"", "\"dtype\"", "\"data_offsets\"", "\"__metadata__\"", "\"megadp.checksums\"", "\"weight_map\"", "\"F64\""}),
       run});
}
