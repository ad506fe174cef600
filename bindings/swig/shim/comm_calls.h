// SPDX-License-Identifier: Apache-2.0
// What comm.h declares and does not define in place.
#pragma once

#include "comm.h"

namespace megadp {

// The id travels as text, two hexadecimal digits a byte.
inline std::string to_hexadecimal(const mdp_unique_id& id) {
  std::string text;
  for (unsigned char byte : id.bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

inline bool from_hexadecimal(const std::string& text, mdp_unique_id* id) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  if (text.size() != 2 * sizeof id->bytes) return false;
  for (size_t i = 0; i < sizeof id->bytes; ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    id->bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

inline std::string Comm::unique_id(Failure& failure) {
  return guarded(failure, [&] {
    mdp_unique_id id{};
    return failure.take(mdp_unique_id_create(&id)) ? to_hexadecimal(id) : std::string();
  });
}

inline Comm* Comm::create(const CommOptions& options, Failure& failure) {
  mdp_comm_config config;
  if (!options.describe(&config, failure)) return nullptr;
  mdp_unique_id id{};
  if (!options.id.empty() && !from_hexadecimal(options.id, &id)) {
    failure.refuse(MDP_E_INVALID, "id must be text that Comm.unique_id made (%zu hexadecimal digits), not these %zu characters",
                   2 * sizeof id.bytes, options.id.size());
    return nullptr;
  }
  return guarded(failure, [&]() -> Comm* {
    mdp_comm* comm = nullptr;
    return failure.take(mdp_comm_create(&config, options.id.empty() ? nullptr : &id, &comm)) ? new Comm(comm) : nullptr;
  });
}

inline Comm* Comm::split(long long color, long long key, Failure& failure) {
  for (const auto& [name, given] : {std::pair("color", color), std::pair("key", key)}) {
    if (given >= INT32_MIN && given <= INT32_MAX) continue;
    failure.refuse(MDP_E_INVALID, "%s must be from %d to %d, not %lld", name, INT32_MIN, INT32_MAX, given);
    return nullptr;
  }
  return guarded(failure, [&]() -> Comm* {
    const auto comm = comm_.use_collectively(failure);
    mdp_comm* part = nullptr;
    if (!comm || !failure.take(mdp_comm_split(comm.get(), static_cast<int32_t>(color), static_cast<int32_t>(key), &part)) ||
        part == nullptr)
      return nullptr;
    return new Comm(part);
  });
}

inline bool Comm::barrier_slice(bool again, Failure& failure) {
  const auto comm = comm_.use(failure);
  const auto begin = [&](mdp_request** request) { return mdp_barrier(comm.get(), request); };
  return !comm || barrier_.wait(*comm_.operations(), again, failure, begin);
}

inline Request* Comm::start_barrier(Failure& failure) {
  return guarded(failure, [&]() -> Request* {
    mdp_request* request = nullptr;
    const auto comm = comm_.use_collectively(failure);
    return comm ? Request::own(mdp_barrier(comm.get(), &request), request, failure) : nullptr;
  });
}

inline Failure* Comm::lost(Failure& failure) const {
  return guarded(failure, [&]() -> Failure* {
    const auto comm = comm_.use(failure);
    mdp_error_info info{};
    info.struct_size = sizeof info;
    if (!comm || !failure.take(mdp_comm_error_info(comm.get(), &info))) return nullptr;
    auto* const found = new Failure();
    found->take(info);
    return found;
  });
}

inline int Comm::event_fd(Failure& failure) const {
  int32_t fd = -1;
  if (const auto comm = comm_.use(failure)) failure.take(mdp_comm_event_fd(comm.get(), &fd));
  return fd;
}

// collective(comm, from, to) on the caller's memory.
template <class Collective>
void on_memory(const Handle<mdp_comm>& handle, DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to,
               long long to_bytes, Failure& failure, Collective collective) {
  const Operand source(dtype, from, from_bytes, "from", failure), target(dtype, to, to_bytes, "to", failure);
  if (failure.failed()) return;
  if (const auto comm = handle.use_collectively(failure)) failure.take(collective(comm.get(), source.get(), target.get()));
}

// The same on numbers: `count` of them come out, beginning as a copy of `values`.
template <class Collective>
std::vector<double> on_numbers(const Handle<mdp_comm>& handle, const std::vector<double>& values, size_t count, Failure& failure,
                               Collective collective) {
  return guarded(failure, [&] {
    std::vector<double> result(values);
    result.resize(count);
    const Operand source(DType::F64, values.data(), byte_count(values), "values", failure);
    const Operand target(DType::F64, result.data(), byte_count(result), "result", failure);
    const auto comm = handle.use_collectively(failure);
    // Without memory where it fails: several languages jump over what would free it.
    if (!comm || !failure.take(collective(comm.get(), source.get(), target.get()))) return std::vector<double>();
    return result;
  });
}

inline void Comm::all_reduce(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes, Op op,
                             Failure& failure) {
  on_memory(comm_, dtype, from, from_bytes, to, to_bytes, failure, [&](auto* comm, auto* source, auto* target) {
    return mdp_all_reduce(comm, source, target, static_cast<mdp_op>(op), nullptr, nullptr);
  });
}

inline void Comm::reduce_scatter(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes, Op op,
                                 Failure& failure) {
  on_memory(comm_, dtype, from, from_bytes, to, to_bytes, failure, [&](auto* comm, auto* source, auto* target) {
    return mdp_reduce_scatter(comm, source, target, static_cast<mdp_op>(op), nullptr, nullptr);
  });
}

inline void Comm::all_gather(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes,
                             Failure& failure) {
  on_memory(comm_, dtype, from, from_bytes, to, to_bytes, failure,
            [&](auto* comm, auto* source, auto* target) { return mdp_all_gather(comm, source, target, nullptr, nullptr); });
}

inline void Comm::all_to_all(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes,
                             Failure& failure) {
  on_memory(comm_, dtype, from, from_bytes, to, to_bytes, failure,
            [&](auto* comm, auto* source, auto* target) { return mdp_all_to_all(comm, source, target, nullptr, nullptr); });
}

inline void Comm::broadcast(DType dtype, unsigned char* to, long long to_bytes, int root, Failure& failure) {
  on_memory(comm_, dtype, to, to_bytes, to, to_bytes, failure,
            [&](auto* comm, auto*, auto* target) { return mdp_broadcast(comm, target, root, nullptr, nullptr); });
}

// ── pieces of different sizes, and messages ──

inline void Comm::reduce_scatter_v(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes,
                                   const Counts& counts, Op op, Failure& failure) {
  const std::vector<uint64_t> list = counts_of(counts, "counts", failure);
  if (failure.failed()) return;
  on_memory(comm_, dtype, from, from_bytes, to, to_bytes, failure, [&](auto* comm, auto* source, auto* target) {
    return mdp_reduce_scatter_v(comm, source, target, list.data(), static_cast<mdp_op>(op), nullptr, nullptr);
  });
}

inline void Comm::all_gather_v(DType dtype, const unsigned char* from, long long from_bytes, unsigned char* to, long long to_bytes,
                               const Counts& counts, Failure& failure) {
  const std::vector<uint64_t> list = counts_of(counts, "counts", failure);
  if (failure.failed()) return;
  on_memory(comm_, dtype, from, from_bytes, to, to_bytes, failure,
            [&](auto* comm, auto* source, auto* target) { return mdp_all_gather_v(comm, source, target, list.data(), nullptr, nullptr); });
}

inline void Comm::all_to_all_v(DType dtype, const unsigned char* from, long long from_bytes, const Counts& from_counts, unsigned char* to,
                               long long to_bytes, const Counts& to_counts, Failure& failure) {
  const std::vector<uint64_t> sent = counts_of(from_counts, "from_counts", failure), expected = counts_of(to_counts, "to_counts", failure);
  if (failure.failed()) return;
  on_memory(comm_, dtype, from, from_bytes, to, to_bytes, failure, [&](auto* comm, auto* source, auto* target) {
    return mdp_all_to_all_v(comm, source, sent.data(), target, expected.data(), nullptr, nullptr);
  });
}

inline void Comm::send(DType dtype, const unsigned char* from, long long from_bytes, int rank, Failure& failure) {
  const Operand source(dtype, from, from_bytes, "from", failure);
  if (failure.failed()) return;
  if (const auto comm = comm_.use_collectively(failure)) failure.take(mdp_send(comm.get(), source.get(), rank, nullptr, nullptr));
}

inline void Comm::recv(DType dtype, unsigned char* to, long long to_bytes, int rank, Failure& failure) {
  const Operand target(dtype, to, to_bytes, "to", failure);
  if (failure.failed()) return;
  if (const auto comm = comm_.use_collectively(failure)) failure.take(mdp_recv(comm.get(), target.get(), rank, nullptr, nullptr));
}

inline void Comm::send_recv(DType dtype, const unsigned char* from, long long from_bytes, int to_rank, unsigned char* to,
                            long long to_bytes, int from_rank, Failure& failure) {
  on_memory(comm_, dtype, from, from_bytes, to, to_bytes, failure, [&](auto* comm, auto* source, auto* target) {
    return mdp_send_recv(comm, source, to_rank, target, from_rank, nullptr, nullptr);
  });
}

#if !defined(SWIGJAVA) && !defined(SWIGGO)

inline std::vector<double> Comm::all_reduce(const std::vector<double>& values, Op op, Failure& failure) {
  return on_numbers(comm_, values, values.size(), failure, [&](auto* comm, auto* source, auto* target) {
    return mdp_all_reduce(comm, source, target, static_cast<mdp_op>(op), nullptr, nullptr);
  });
}

inline std::vector<double> Comm::all_gather(const std::vector<double>& values, Failure& failure) {
  const int ranks = size(failure);
  if (failure.failed()) return {};
  return on_numbers(comm_, values, values.size() * static_cast<size_t>(ranks), failure,
                    [&](auto* comm, auto* source, auto* target) { return mdp_all_gather(comm, source, target, nullptr, nullptr); });
}

inline std::vector<double> Comm::broadcast(const std::vector<double>& values, int root, Failure& failure) {
  return on_numbers(comm_, values, values.size(), failure,
                    [&](auto* comm, auto*, auto* target) { return mdp_broadcast(comm, target, root, nullptr, nullptr); });
}

inline std::vector<double> Comm::all_gather_v(const std::vector<double>& values, const std::vector<double>& counts, Failure& failure) {
  Counts whole;
  for (const double count : counts)
    whole.add(count >= 0 && count <= 9e15 && count == std::floor(count) ? static_cast<long long>(count) : -1);
  const std::vector<uint64_t> list = counts_of(whole, "counts", failure);
  if (failure.failed()) return {};
  size_t sum = 0;
  for (const uint64_t count : list) sum += static_cast<size_t>(count);
  return on_numbers(comm_, values, sum, failure, [&](auto* comm, auto* source, auto* target) {
    return mdp_all_gather_v(comm, source, target, list.data(), nullptr, nullptr);
  });
}

inline std::vector<double> Comm::send_recv(const std::vector<double>& values, int to_rank, int from_rank, Failure& failure) {
  return on_numbers(comm_, values, values.size(), failure, [&](auto* comm, auto* source, auto* target) {
    return mdp_send_recv(comm, source, to_rank, target, from_rank, nullptr, nullptr);
  });
}

#endif
}  // namespace megadp
