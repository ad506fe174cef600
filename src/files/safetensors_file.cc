// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "files/checksum.h"
#include "files/json_value.h"

namespace megadp {
namespace {

constexpr const char* kChecksums = "megadp.checksums";
constexpr uint64_t kLengthBytes = 8, kHeaderAlignment = 64;
constexpr uint64_t kWriteback = uint64_t{8} << 20;  // the device is kept busy while more is written

std::string describe(const TensorToStore& tensor, uint64_t begin) {
  std::string out = text(",", json_string(tensor.name), ":{\"dtype\":\"", stored_name(tensor.type), "\",\"shape\":[");
  for (size_t d = 0; d < tensor.shape.size(); ++d) out += text(d == 0 ? "" : ",", tensor.shape[d]);
  return out + text("],\"data_offsets\":[", begin, ",", begin + tensor.bytes, "]}");
}

// The format leaves neither gaps nor overlaps: a file that has some is damaged, or made to mislead.
Status check_cover(const std::vector<StoredTensor>& tensors, uint64_t data_bytes) {
  std::vector<const StoredTensor*> in_order;
  for (const StoredTensor& tensor : tensors) in_order.push_back(&tensor);
  std::sort(in_order.begin(), in_order.end(),
            [](const auto* a, const auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  uint64_t end = 0;
  for (const StoredTensor* tensor : in_order) {
    if (tensor->begin != end) {
      return Status(Code::corrupt, text("tensor ", in_quotes(tensor->name), " begins at byte ", tensor->begin,
                                        " of its data, where the one before it ends at ", end));
    }
    end = tensor->end;
  }
  if (end == data_bytes) return {};
  return Status(Code::corrupt, text("it has ", data_bytes, " bytes of data, and its tensors take ", end));
}

uint64_t chunks_of(uint64_t bytes) {
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(File file, std::string tensors, std::string metadata, bool has_checksums, uint64_t data_bytes)
    : file_(std::move(file)),
      tensors_(std::move(tensors)),
      metadata_(std::move(metadata)),
      has_checksums_(has_checksums),
      data_bytes_(data_bytes) {
  chunk_.reserve(kChunkBytes);
}

// The same length whatever the checksums are.
std::string SafetensorsWriter::header(const std::string& checksums) const {
  const std::string metadata = has_checksums_ ? text("\"", kChecksums, "\":\"", checksums, "\"") : metadata_;
  std::string json = text("{\"", kMetadataName, "\":{", metadata, "}", tensors_, "}");
  json.resize((json.size() + kLengthBytes + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment - kLengthBytes, ' ');
  return json;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const Folder& in, const std::string& name, std::span<const TensorToStore> tensors,
                                                    const std::map<std::string, std::string>* metadata) {
  std::string described, members;
  uint64_t bytes = 0;
  for (const TensorToStore& tensor : tensors) {
    described += describe(tensor, bytes);
    bytes += tensor.bytes;
  }
  if (metadata != nullptr) {
    for (const auto& [key, value] : *metadata) members += text(members.empty() ? "" : ",", json_string(key), ":", json_string(value));
  }
  auto file = in.create_file(name);
  if (!file) return file.status();
  SafetensorsWriter writer(*std::move(file), std::move(described), std::move(members), metadata == nullptr, bytes);
  const uint64_t length = writer.header(std::string(chunks_of(bytes) * kChecksumDigits, '0')).size();
  if (length > kLongestHeader) {
    return unsupported(in.path_of(name), ": ", tensors.size(), " pieces want a header of ", length, " bytes, and readers take at most ",
                       kLongestHeader);
  }
  writer.header_bytes_ = kLengthBytes + length;
  return writer;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const Folder& in, const std::string& name, std::span<const TensorToStore> tensors) {
  return create(in, name, tensors, nullptr);
}

Result<SafetensorsWriter> SafetensorsWriter::create_model(const Folder& in, const std::string& name, std::span<const TensorToStore> tensors,
                                                          const std::map<std::string, std::string>& metadata) {
  return create(in, name, tensors, &metadata);
}

Status SafetensorsWriter::write_chunk(const void* data, size_t bytes) {
  append_digits(&checksums_, checksum(data, bytes));
  if (Status written = file_.write(data, bytes, header_bytes_ + written_); !written) return written;
  written_ += bytes;
  if (written_ - written_back_ < kWriteback) return {};
  file_.start_writeback(header_bytes_ + written_back_, header_bytes_ + written_);
  written_back_ = written_;
  return {};
}

Status SafetensorsWriter::append(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    if (chunk_.empty() && bytes >= kChunkBytes) {
      if (Status written = write_chunk(from, kChunkBytes); !written) return written;
      from += kChunkBytes;
      bytes -= kChunkBytes;
      continue;
    }
    const size_t count = std::min(bytes, kChunkBytes - chunk_.size());
    chunk_.insert(chunk_.end(), from, from + count);
    from += count;
    bytes -= count;
    if (chunk_.size() < kChunkBytes) continue;
    if (Status written = write_chunk(chunk_.data(), chunk_.size()); !written) return written;
    chunk_.clear();
  }
  return {};
}

Result<WrittenFile> SafetensorsWriter::finish() {
  if (!chunk_.empty()) {
    if (Status written = write_chunk(chunk_.data(), chunk_.size()); !written) return written;
  }
  if (written_ != data_bytes_) return internal_error(file_.path(), ": ", written_, " bytes of data were given, not ", data_bytes_);
  const std::string json = header(checksums_);
  std::string front;
  for (uint64_t i = 0; i < kLengthBytes; ++i) front += static_cast<char>(json.size() >> (8 * i));
  front += json;
  if (Status written = file_.write(front.data(), front.size(), 0); !written) return written;
  if (Status synced = file_.sync(); !synced) return synced;
  return WrittenFile{header_bytes_ + data_bytes_, checksum(front.data(), front.size())};
}

Result<SafetensorsReader> SafetensorsReader::open(const Folder& in, const std::string& name, const WrittenFile* expected) {
  auto file = in.open_file(name);
  if (!file) return file.status();
  SafetensorsReader reader(*std::move(file));
  const auto wrong = [&](const auto&... words) {
    return Status(Code::corrupt, text(reader.path(), expected != nullptr ? " is damaged: " : " is no safetensors file: ", words...));
  };
  auto bytes = reader.file_.bytes();
  if (!bytes) return bytes.status();
  if (expected != nullptr && *bytes != expected->bytes) return wrong("it has ", *bytes, " bytes, and ", expected->bytes, " were written");
  std::string front(std::min<uint64_t>(*bytes, kLengthBytes), '\0');
  if (Status read = reader.file_.read(front.data(), front.size(), 0); !read) return read;
  auto header_bytes = safetensors_header_bytes(front);
  if (!header_bytes) return wrong(header_bytes.status().text());
  if (*header_bytes > *bytes - kLengthBytes) return wrong("its header would have ", *header_bytes, " bytes");
  front.resize(kLengthBytes + *header_bytes);
  if (Status read = reader.file_.read(front.data(), front.size(), 0); !read) return read;
  reader.about_ = {*bytes, checksum(front.data(), front.size())};
  if (expected != nullptr && reader.about_.header_checksum != expected->header_checksum)
    return wrong("the checksum of its header, bytes 0 to ", front.size(), ", differs");
  if (Status taken = reader.take_header(std::string_view(front).substr(kLengthBytes), *bytes); !taken) return wrong(taken.text());
  if (expected == nullptr && !reader.metadata_.contains(kChecksums)) return reader;
  if (Status taken = reader.take_checksums(reader.metadata_[kChecksums]); !taken) {
    return Status(Code::corrupt, text(reader.path(), " is damaged: ", taken.text()));
  }
  reader.has_checksums_ = true;
  return reader;
}

Result<SafetensorsReader> SafetensorsReader::open(const Folder& in, const std::string& name, const WrittenFile& expected) {
  return open(in, name, &expected);
}

Result<SafetensorsReader> SafetensorsReader::open_model(const Folder& in, const std::string& name) {
  return open(in, name, nullptr);
}

Status SafetensorsReader::take_header(std::string_view json, uint64_t file_bytes) {
  auto header = parse_safetensors_header(json);
  if (!header) return header.status();
  data_begin_ = kLengthBytes + json.size();
  data_bytes_ = file_bytes - data_begin_;
  tensors_ = std::move(header->tensors);
  metadata_ = std::move(header->metadata);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const StoredTensor& tensor = tensors_[i];
    if (tensor.end > data_bytes_) return Status(Code::corrupt, text("tensor ", in_quotes(tensor.name), " lies beyond its end"));
    if (!by_name_.emplace(tensor.name, i).second) return Status(Code::corrupt, text("it has tensor ", in_quotes(tensor.name), " twice"));
  }
  return check_cover(tensors_, data_bytes_);
}

Status SafetensorsReader::take_checksums(std::string_view digits) {
  const uint64_t chunks = chunks_of(data_bytes_);
  if (digits.size() != chunks * kChecksumDigits) return Status(Code::corrupt, text("it has no ", chunks, " checksums"));
  checksums_.resize(chunks);
  for (size_t i = 0; i < chunks; ++i) {
    if (!read_digits(digits.substr(i * kChecksumDigits, kChecksumDigits), &checksums_[i])) {
      return Status(Code::corrupt, text("its checksum number ", i, " is none"));
    }
  }
  return {};
}

const StoredTensor* SafetensorsReader::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

Status SafetensorsReader::load_chunk(uint64_t begin) {
  if (begin == chunk_begin_) return {};
  chunk_begin_ = kNoChunk;
  chunk_.resize(chunk_bytes(begin));
  if (Status read = read_chunk(begin, chunk_.data()); !read) return read;
  chunk_begin_ = begin;
  return {};
}

// The system reads ahead by itself, and takes large pages for it; for what it is asked to read ahead (POSIX_FADV_WILLNEED) it takes small
// ones, which cost three times the processor time and half the speed.
Status SafetensorsReader::read_chunk(uint64_t begin, char* to) {
  const size_t bytes = chunk_bytes(begin);
  if (go_on_) {
    if (Status goes_on = go_on_(); !goes_on) return goes_on;
  }
  if (Status read = file_.read(to, bytes, data_begin_ + begin); !read) return read;
  if (!checksums_.empty() && checksum(to, bytes) != checksums_[begin / kChunkBytes]) {
    return Status(Code::corrupt, text(path(), " is damaged: the checksum of bytes ", data_begin_ + begin, " to ",
                                      data_begin_ + begin + bytes, " differs"));
  }
  return {};
}

Status SafetensorsReader::read_into(uint64_t begin, uint64_t end, char* to) {
  while (begin < end) {
    const uint64_t at = begin % kChunkBytes, chunk = begin - at, whole = chunk_bytes(chunk);
    const uint64_t count = std::min(end - begin, whole - at);
    if (count == whole && chunk != chunk_begin_) {
      if (Status read = read_chunk(chunk, to); !read) return read;
    } else {
      if (Status loaded = load_chunk(chunk); !loaded) return loaded;
      std::copy_n(chunk_.data() + at, count, to);
    }
    begin += count;
    to += count;
  }
  return {};
}

Status SafetensorsReader::read(uint64_t begin, uint64_t end, size_t element_bytes,
                               const std::function<Status(const char* data, size_t bytes)>& give) {
  const uint64_t askew = begin % element_bytes;
  while (begin < end) {
    const size_t at = (begin - askew) % kChunkBytes;
    if (Status loaded = load_chunk(begin - at); !loaded) return loaded;
    const size_t count = std::min<uint64_t>(end - begin, chunk_.size() - at);
    if (Status given = give(chunk_.data() + at, count); !given) return given;
    begin += count;
  }
  return {};
}

void SafetensorsReader::check_data(const std::function<void(const Status&)>& tell) {
  for (uint64_t begin = 0; begin < data_bytes_; begin += kChunkBytes) {
    if (Status loaded = load_chunk(begin); !loaded) tell(loaded);
  }
}

}  // namespace megadp
