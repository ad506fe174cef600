// SPDX-License-Identifier: Apache-2.0
// Reading a safetensors file can be left off between its chunks, whichever way it is read.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "files/safetensors_file.h"

using namespace megadp;
using namespace megadp::test;

namespace {

constexpr size_t kChunks = 4, kBytes = kChunks * kChunkBytes;

SafetensorsReader written(const Folder& in) {
  const TensorToStore tensor{"values", DType::u8, {static_cast<int64_t>(kBytes)}, kBytes};
  auto writer = SafetensorsWriter::create(in, "file", {&tensor, 1});
  check(writer.ok() && writer->append(std::string(kBytes, 'x').data(), kBytes).ok(), "a file to write");
  auto about = writer->finish();
  check(about.ok(), "a file that is written");
  auto reader = SafetensorsReader::open(in, "file", *about);
  check(reader.ok(), "a file to read");
  return *std::move(reader);
}

template <class Read>
void leaves_off(const Folder& in, const Read& read) {
  for (size_t most = 0; most <= kChunks; ++most) {
    SafetensorsReader reader = written(in);
    size_t asked = 0, got = 0;
    reader.ask_before_chunks([&] { return asked++ < most ? Status() : Status(Code::aborted, "enough"); });
    const Status status = read(reader, &got);
    check(status.code() == (most < kChunks ? Code::aborted : Code::ok), text(most, " chunks: '", status.text(), "'"));
    check_equal(asked, std::min(most + 1, kChunks), "asked once a chunk");
    check_equal(got, most * kChunkBytes, "what came before it left off");
    check(in.remove("file").ok(), "the file goes");
  }
}

}  // namespace

int main() {
  std::string path = "/tmp/megadp-safetensors-XXXXXX";
  check(::mkdtemp(path.data()) != nullptr, "a folder of its own");
  auto folder = Folder::open(path);
  leaves_off(*folder, [](SafetensorsReader& reader, size_t* got) {
    return reader.read(0, kBytes, 1, [got](const char*, size_t bytes) {
      *got += bytes;
      return Status();
    });
  });
  leaves_off(*folder, [](SafetensorsReader& reader, size_t* got) {
    std::vector<char> to(kBytes);
    const Status status = reader.read_into(0, kBytes, to.data());
    *got = static_cast<size_t>(std::count(to.begin(), to.end(), 'x'));
    return status;
  });
  ::rmdir(path.c_str());
  return finish();
}
