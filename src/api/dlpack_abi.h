// SPDX-License-Identifier: Apache-2.0
// The part of DLPack 1.0's binary interface that is used here, written down from its specification, so that no header of it is needed to
// build. The layout is frozen by DLPack for all 1.x versions:
//
//   offset  0 version.major, 4 version.minor | 8 manager_ctx | 16 deleter | 24 flags | 32 dl_tensor
//   dl_tensor: 0 data | 8 device_type, 12 device_id | 16 ndim | 20 code, 21 bits, 22 lanes | 24 shape | 32 strides | 40 byte_offset
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct DLPackVersion {
  uint32_t major, minor;
};

struct DLDevice {
  int32_t device_type;  // 1: CPU
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;  // 0 signed, 1 unsigned, 2 IEEE float, 4 bfloat
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;  // 0: writable, not a copy
  DLTensor dl_tensor;
};

}  // extern "C"

static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32 && sizeof(DLManagedTensorVersioned) == 80);
static_assert(offsetof(DLTensor, ndim) == 16 && offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, byte_offset) == 40);
