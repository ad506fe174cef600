// SPDX-License-Identifier: Apache-2.0
// onednn::Library: the functions of oneDNN's C API that matrix products use, version 2 or 3, loaded by name. oneDNN's headers are not
// needed to build: its types are handles, whose inside nobody looks at, and the few numbers stand here. In version 2 a memory or matmul
// descriptor is a struct, of 696 and 2800 bytes, that is handed over by its address and filled by the library: here it is room that is
// larger than both. In version 3 it is a handle. Functions that only read a descriptor take its address in both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/symbol.h"

namespace megadp::host::onednn {

struct Engine;
struct Stream;
struct Attributes;
struct PostOps;
struct PrimitiveDesc;
struct Primitive;
struct Memory;
struct MemoryDesc;

using Outcome = int;  // 0: done
constexpr Outcome kOutOfMemory = 1, kUnimplemented = 3;

constexpr int kCpu = 1;                                                                                          // of engines
constexpr int kUserScratchpad = 1;                                                                               // of scratchpad modes
constexpr unsigned kInOrder = 1;                                                                                 // of streams
constexpr int kUndefinedType = 0, kBf16 = 2, kF32 = 3;                                                           // of data
constexpr int kImplementation = 8, kSourceDesc = 129, kWeightsDesc = 131, kToDesc = 133, kScratchpadDesc = 136;  // of queries
constexpr int kSource = 1, kTo = 17, kWeights = 33, kScratchpad = 80;                                            // of arguments
constexpr unsigned kThreadpool = 8;  // of what a build runs its threads by: a pool that the caller brings

struct Argument {
  int number;
  Memory* memory;
};
struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};
using Dims = std::array<int64_t, 12>;

struct alignas(16) OldMemoryDesc {  // of version 2
  std::array<std::byte, 4096> room;
  const MemoryDesc* address() const noexcept { return reinterpret_cast<const MemoryDesc*>(room.data()); }
};
struct alignas(16) OldMatmulDesc {
  std::array<std::byte, 16384> room;
};

struct Library {
  Library(void* handle, int of_major) noexcept : major(of_major), find(handle) {}
  bool is_old() const noexcept { return major == 2; }

  int major;
  Symbols find;
  const Version* (*version)() = find("dnnl_version");
  Outcome (*engine_create)(Engine**, int kind, size_t index) = find("dnnl_engine_create");
  Outcome (*engine_destroy)(Engine*) = find("dnnl_engine_destroy");
  Outcome (*stream_create)(Stream**, Engine*, unsigned flags) = find("dnnl_stream_create");
  Outcome (*stream_wait)(Stream*) = find("dnnl_stream_wait");
  Outcome (*stream_destroy)(Stream*) = find("dnnl_stream_destroy");
  Outcome (*attributes_create)(Attributes**) = find("dnnl_primitive_attr_create");
  Outcome (*attributes_destroy)(Attributes*) = find("dnnl_primitive_attr_destroy");
  Outcome (*set_scratchpad_mode)(Attributes*, int mode) = find("dnnl_primitive_attr_set_scratchpad_mode");
  Outcome (*set_post_ops)(Attributes*, const PostOps*) = find("dnnl_primitive_attr_set_post_ops");
  Outcome (*post_ops_create)(PostOps**) = find("dnnl_post_ops_create");
  Outcome (*post_ops_destroy)(PostOps*) = find("dnnl_post_ops_destroy");
  Outcome (*primitive_create)(Primitive**, const PrimitiveDesc*) = find("dnnl_primitive_create");
  Outcome (*primitive_destroy)(Primitive*) = find("dnnl_primitive_destroy");
  Outcome (*primitive_execute)(const Primitive*, Stream*, int count, const Argument*) = find("dnnl_primitive_execute");
  Outcome (*primitive_desc_destroy)(PrimitiveDesc*) = find("dnnl_primitive_desc_destroy");
  Outcome (*query)(const PrimitiveDesc*, int query, int index, void* answer) = find("dnnl_primitive_desc_query");
  const MemoryDesc* (*query_memory_desc)(const PrimitiveDesc*, int query, int index) = find("dnnl_primitive_desc_query_md");
  size_t (*memory_desc_bytes)(const MemoryDesc*) = find("dnnl_memory_desc_get_size");
  Outcome (*memory_create)(Memory**, const MemoryDesc*, Engine*, void* data) = find("dnnl_memory_create");
  Outcome (*memory_destroy)(Memory*) = find("dnnl_memory_destroy");
  // c = alpha a b + beta c, by rows, with any leading dimensions.
  Outcome (*sgemm)(char transpose_a, char transpose_b, int64_t rows, int64_t columns, int64_t inner, float alpha, const float* a,
                   int64_t a_leading, const float* b, int64_t b_leading, float beta, float* c, int64_t c_leading) = find("dnnl_sgemm");

  Outcome (*old_memory_desc)(OldMemoryDesc*, int dims, const int64_t* shape, int type,
                             const int64_t* strides) = find.optional(is_old(), "dnnl_memory_desc_init_by_strides");
  Outcome (*old_matmul_desc)(OldMatmulDesc*, const MemoryDesc* source, const MemoryDesc* weights, const MemoryDesc* bias,
                             const MemoryDesc* to) = find.optional(is_old(), "dnnl_matmul_desc_init");
  Outcome (*old_primitive_desc)(PrimitiveDesc**, const OldMatmulDesc*, const Attributes*, Engine*,
                                const PrimitiveDesc* hint) = find.optional(is_old(), "dnnl_primitive_desc_create");
  Outcome (*old_append_sum)(PostOps*, float scale) = find.optional(is_old(), "dnnl_post_ops_append_sum");

  Outcome (*memory_desc)(MemoryDesc**, int dims, const int64_t* shape, int type,
                         const int64_t* strides) = find.optional(!is_old(), "dnnl_memory_desc_create_with_strides");
  Outcome (*memory_desc_destroy)(MemoryDesc*) = find.optional(!is_old(), "dnnl_memory_desc_destroy");
  Outcome (*matmul_desc)(PrimitiveDesc**, Engine*, const MemoryDesc* source, const MemoryDesc* weights, const MemoryDesc* bias,
                         const MemoryDesc* to, const Attributes*) = find.optional(!is_old(), "dnnl_matmul_primitive_desc_create");
  Outcome (*append_sum)(PostOps*, float scale, int32_t zero_point, int type) = find.optional(!is_old(), "dnnl_post_ops_append_sum");
};

}  // namespace megadp::host::onednn
