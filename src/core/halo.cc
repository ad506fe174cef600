// SPDX-License-Identifier: Apache-2.0
#include "core/halo.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/shape.h"
#include "control/agreement.h"

namespace megadp {
namespace {

constexpr const char* kCreate = "mdp_halo_create";

// From here on it is faster that a neighbour reads an array where it lies, and is waited for once more, than that pieces are packed: if it
// is not little, and in runs of a cache line or more, since others are brought over line by line for a few bytes each.
constexpr uint64_t kLentBytes = 1024, kLentRun = 64;

uint64_t room_for(const std::vector<int64_t>& shape, DType type) {
  return (elements_of(shape) * size_of(type) + 63) / 64 * 64;
}

StridedArray view(const StridedArray& padded, const std::vector<int64_t>& at, const std::vector<int64_t>& steps,
                  const std::vector<int64_t>& shape) {
  StridedArray box{padded.data, padded.type, shape, padded.strides};
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) {
    offset += at[d] * padded.strides[d];
    box.strides[d] *= steps[d];
  }
  box.data = static_cast<std::byte*>(padded.data) + offset * static_cast<int64_t>(size_of(padded.type));
  return box;
}

StridedArray halo_of(const StridedArray& padded, const HaloBox& box) {
  return view(padded, box.at, std::vector<int64_t>(box.at.size(), 1), box.shape);
}

StridedArray source_of(const StridedArray& padded, const HaloBox& box) {
  return view(padded, box.from, box.steps, box.shape);
}

// What must be the same on all ranks, as a text that people compare.
std::string text_of(const HaloShape& shape) {
  std::string out = text(name_of(shape.type), ", grid ", shape_text(shape.grid), ", low ", shape_text(shape.low), ", high ",
                         shape_text(shape.high), ", edges");
  for (const Edge edge : shape.edges) out += text(" ", name_of(edge));
  out += text(shape.faces ? ", faces" : "", ", ", shape.fields, " fields, ", shape.arrays, " arrays");
  if (!shape.staggered.empty()) out += ", staggered";
  for (const std::vector<int64_t>& each : shape.staggered) out += text(" ", shape_text(each));
  return out;
}

Status check_same(World& world, const std::vector<int>& members, const HaloShape& shape) {
  auto compared = world.compare(members, kCreate, text_of(shape));
  if (!compared) return compared.status();
  if (!*compared) return {};
  const Mismatch& found = **compared;
  return Status(
      Code::desync,
      text("ranks ", found.first, " and ", found.other, " create different halos: '", found.first_bytes, "' and '", found.other_bytes, "'"),
      Blame{.rank = found.other});
}

Result<std::vector<std::vector<int64_t>>> exchange_parts(World& world, const std::vector<int>& members, const std::vector<int64_t>& part) {
  const auto* const bytes = reinterpret_cast<const char*>(part.data());
  auto told = world.exchange(members, kCreate, std::string(bytes, part.size() * sizeof part[0]));
  if (!told) return told.status();
  std::vector<std::vector<int64_t>> parts;
  for (const std::string& one : *told) {
    std::vector<int64_t> sizes(part.size());
    if (one.size() != sizes.size() * sizeof sizes[0]) return internal_error(kCreate, ": ", one.size(), " bytes came from a rank");
    std::memcpy(sizes.data(), one.data(), one.size());
    parts.push_back(std::move(sizes));
  }
  return parts;
}

}  // namespace

Result<std::shared_ptr<Halo>> Halo::create(const std::shared_ptr<Comm>& comm, HaloShape shape, std::vector<int64_t> part) {
  Context& context = comm->context();
  if (Status usable = context.usable(); !usable) return usable;
  const std::vector<int>& members = comm->group().members();
  return with_others(*context.world, [&]() -> Result<std::shared_ptr<Halo>> {
    if (Status same = check_same(*context.world, members, shape); !same) return same;
    auto parts = exchange_parts(*context.world, members, part);
    if (!parts) return parts.status();
    auto own = comm->subset(members);
    if (!own) return own.status();
    std::shared_ptr<Halo> halo(new Halo(*std::move(own), std::move(shape)));
    if (Status planned = halo->plan(*parts); !planned) return planned;
    auto zero = halo->backend().allocate(sizeof(double));
    if (zero) halo->zero_ = *std::move(zero);
    if (Status agreed = agree(*context.world, members, {kCreate}, zero.status()); !agreed) return agreed;
    return halo;
  });
}

Status Halo::plan(const std::vector<std::vector<int64_t>>& parts) {
  const std::vector<int64_t> none(shape_.ndim());
  if (Status added = add_kind(none, parts); !added) return added;
  for (size_t f = 0; f < shape_.fields; ++f) {
    const std::vector<int64_t>& staggered = shape_.staggered.empty() ? none : shape_.staggered[f];
    const auto known = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& one) { return one.staggered == staggered; });
    kind_of_.push_back(static_cast<size_t>(known - kinds_.begin()));
    if (known != kinds_.end()) continue;
    if (Status added = add_kind(staggered, parts); !added) return added;
  }
  Counts out(static_cast<size_t>(comm_->size())), in(out.size());
  for (int rank = 0; rank < comm_->size(); ++rank) {
    Shared shared = shared_with(rank);
    if (shared.lent.bytes == 0 && shared.halo.bytes == 0) continue;
    if (rank != comm_->rank()) {
      out[static_cast<size_t>(rank)] = shared.lent.bytes;
      in[static_cast<size_t>(rank)] = shared.halo.bytes;
    }
    shared_.push_back(std::move(shared));
  }
  std::byte* begin = nullptr;
  if (comm_->size() > 1) {
    auto exchange = comm_->group().create_exchange(out, in, own_bytes());
    if (!exchange) return exchange.status();
    exchange_ = *std::move(exchange);
    begin = exchange_->lent();
  } else if (own_bytes() > 0) {
    auto memory = backend().allocate(own_bytes());
    if (!memory) return memory.status();
    alone_ = *std::move(memory);
    begin = static_cast<std::byte*>(alone_->data());
  }
  own_ = arrays_of(comm_->rank(), begin);
  return {};
}

Status Halo::add_kind(const std::vector<int64_t>& staggered, const std::vector<std::vector<int64_t>>& parts) {
  auto cuts = cut_of(shape_, staggered, parts, comm_->group().members());
  if (!cuts) return cuts.status();
  Kind kind{staggered, {}, *std::move(cuts), {}};
  kind.padded = padded_of(kind, comm_->rank());
  kind.boxes = halo_boxes(shape_, kind.cuts, comm_->rank());
  kinds_.push_back(std::move(kind));
  return {};
}

Halo::Shared Halo::shared_with(int rank) const {
  const auto with_owner = [](const Boxes& boxes, int owner) {
    Boxes some;
    std::copy_if(boxes.begin(), boxes.end(), std::back_inserter(some), [&](const HaloBox& box) { return box.owner == owner; });
    return some;
  };
  const int own = comm_->rank();
  Shared shared{rank, {}, {}};
  for (const Kind& kind : kinds_) {
    shared.halo.boxes.push_back(with_owner(kind.boxes, rank));
    shared.lent.boxes.push_back(rank == own ? Boxes() : with_owner(halo_boxes(shape_, kind.cuts, rank), own));
  }
  for (Side* const side : {&shared.halo, &shared.lent}) measure(side, rank == own);
  return shared;
}

// Arrays that are lent are row-major: their runs lie along the last dimension.
void Halo::measure(Side* side, bool is_own) const {
  uint64_t elements = 0, runs = 0;
  for (const size_t kind : kind_of_) {
    for (const HaloBox& box : side->boxes[kind]) {
      const uint64_t count = elements_of(box.shape);
      elements += count;
      if (count > 0) runs += box.steps.back() == 1 ? count / static_cast<uint64_t>(box.shape.back()) : count;
    }
  }
  side->bytes = elements * size_of(shape_.type);
  side->in_place = !is_own && side->bytes >= kLentBytes && side->bytes >= kLentRun * runs;
}

std::vector<int64_t> Halo::padded_of(const Kind& kind, int rank) const {
  std::vector<int64_t> padded = shape_.coords_of(rank);
  for (size_t d = 0; d < padded.size(); ++d) {
    const int64_t place = padded[d];
    padded[d] = shape_.low[d] + kind.cuts[d].size(place) + kind.cuts[d].highs[static_cast<size_t>(place)];
  }
  return padded;
}

std::vector<StridedArray> Halo::arrays_of(int rank, std::byte* begin) const {
  std::vector<StridedArray> arrays;
  for (size_t a = 0; a < shape_.arrays; ++a) {
    std::vector<int64_t> padded = padded_of(kind(a), rank);
    arrays.push_back({begin, shape_.type, padded, dense_strides(padded)});
    begin += room_for(padded, shape_.type);
  }
  return arrays;
}

uint64_t Halo::own_bytes() const {
  uint64_t bytes = 0;
  for (size_t a = 0; a < shape_.arrays; ++a) bytes += room_for(kind(a).padded, shape_.type);
  return bytes;
}

uint64_t Halo::lends() const {
  const auto is_read = [&](const Shared& shared) { return shared.sent(backward_).in_place && exchange_->sees(shared.rank); };
  if (std::none_of(shared_.begin(), shared_.end(), is_read)) return 0;
  const auto same = [](const StridedArray& field, const StridedArray& own) {
    return field.data == own.data && field.shape == own.shape && field.strides == own.strides;
  };
  const auto found = std::search(own_.begin(), own_.end(), fields_.begin(), fields_.end(),
                                 [&](const StridedArray& own, const StridedArray& field) { return same(field, own); });
  return found == own_.end() ? 0 : static_cast<uint64_t>(found - own_.begin()) + 1;
}

Status Halo::check(const std::vector<StridedArray>& fields) const {
  if (fields.size() != shape_.fields) {
    return invalid("count is ", fields.size(), "; this halo was created for ", shape_.fields, " fields");
  }
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].type != shape_.type) {
      return invalid("fields[", f, "].dtype is ", name_of(fields[f].type), "; this halo was created for ", name_of(shape_.type));
    }
    const std::vector<int64_t>& padded = kind(f).padded;
    if (fields[f].shape != padded) {
      return invalid("fields[", f, "] has shape ", shape_text(fields[f].shape), "; this rank's part with its halo has ",
                     shape_text(padded));
    }
  }
  return {};
}

Status Halo::move(Move what, const Side& side, std::byte* packed, void* caller) const {
  for (size_t f = 0; f < fields_.size(); ++f) {
    const StridedArray& field = fields_[f];
    for (const HaloBox& box : side.boxes[kind_of_[f]]) {
      const StridedArray dense{packed, field.type, box.shape, dense_strides(box.shape)};
      const bool of_part = what == Move::pack_part || what == Move::add_to_part;
      const StridedArray here = of_part ? source_of(field, box) : halo_of(field, box);
      const bool packs = what == Move::pack_part || what == Move::pack_halo;
      const Status moved = backend().copy(packs ? dense : here, packs ? here : dense, what == Move::add_to_part, caller);
      if (!moved) return moved;
      packed += elements_of(box.shape) * size_of(field.type);
    }
  }
  return {};
}

Status Halo::clear(const HaloBox& box, const StridedArray& field, void* caller) const {
  const StridedArray zeros{zero_->data(), field.type, box.shape, std::vector<int64_t>(box.shape.size(), 0)};
  return backend().copy(halo_of(field, box), zeros, false, caller);
}

// What needs no other rank is done at once: halos of its own part, and zeros.
Status Halo::forward(void* caller) {
  for (size_t f = 0; f < fields_.size(); ++f) {
    const StridedArray& field = fields_[f];
    for (const HaloBox& box : kind(f).boxes) {
      Status done;
      if (box.owner == kBoxZero) done = clear(box, field, caller);
      if (box.owner == comm_->rank()) done = backend().copy(halo_of(field, box), source_of(field, box), false, caller);
      if (!done) return done;
    }
  }
  return {};
}

// The pieces are those of the last exchange, which another stream of the caller's may still send, or unpack.
Status Halo::follow_last(void* caller) const {
  return taken_ == nullptr ? Status() : comm_->channel().stream().make_caller_wait(caller, *taken_);
}

Status Halo::start(std::vector<StridedArray> fields, bool backward, void* caller) {
  if (!fields_.empty()) return bad_state("mdp_halo_start was called before; mdp_halo_finish comes first");
  if (Status usable = comm_->context().usable(); !usable) return usable;
  if (Status good = check(fields); !good) return good;
  return comm_->context().commit([&]() -> Status {
    fields_ = std::move(fields);
    backward_ = backward;
    if (exchange_ != nullptr) {
      if (Status ordered = follow_last(caller); !ordered) return ordered;
      if (Status begun = exchange_->begin(backward); !begun) return begun;
      const uint64_t lent = lends();
      for (const Shared& shared : shared_) {
        const Side& sent = shared.sent(backward);
        if (shared.rank == comm_->rank() || (lent != 0 && sent.in_place && exchange_->sees(shared.rank))) continue;
        const Status packed = move(backward ? Move::pack_halo : Move::pack_part, sent, exchange_->outgoing(shared.rank), caller);
        if (!packed) return packed;
      }
      if (Status started = exchange_->start(comm_->channel().stream(), caller, lent); !started) return started;
    }
    return backward ? Status() : forward(caller);
  });
}

Status Halo::read_lent(const Shared& shared, std::span<const StridedArray> theirs, void* caller) const {
  for (size_t f = 0; f < fields_.size(); ++f) {
    for (const HaloBox& box : shared.taken(backward_).boxes[kind_of_[f]]) {
      const StridedArray here = backward_ ? source_of(fields_[f], box) : halo_of(fields_[f], box);
      const StridedArray there = backward_ ? halo_of(theirs[f], box) : source_of(theirs[f], box);
      if (Status read = backend().copy(here, there, backward_, caller); !read) return read;
    }
  }
  return {};
}

// What has come from another rank.
Status Halo::take(const Shared& shared, void* caller) const {
  const Side& taken = shared.taken(backward_);
  if (taken.bytes == 0) return {};
  uint64_t lends = 0;
  if (const std::byte* const lent = exchange_->lent_by(shared.rank, &lends); lent != nullptr && taken.in_place) {
    const std::vector<StridedArray> theirs = arrays_of(shared.rank, const_cast<std::byte*>(lent));  // only read
    return read_lent(shared, std::span(theirs).subspan(lends - 1), caller);
  }
  auto* const from = const_cast<std::byte*>(exchange_->incoming(shared.rank));  // only read
  return move(backward_ ? Move::add_to_part : Move::unpack_halo, taken, from, caller);
}

Status Halo::add_own(const Shared& shared, void* caller) const {
  for (size_t f = 0; f < fields_.size(); ++f) {
    const StridedArray& field = fields_[f];
    for (const HaloBox& box : shared.halo.boxes[kind_of_[f]]) {
      if (Status added = backend().copy(source_of(field, box), halo_of(field, box), true, caller); !added) return added;
    }
  }
  return {};
}

// Backward it is added in the order of ranks, so that the sum depends on nothing else.
Status Halo::take_all(void* caller) {
  for (const Shared& shared : shared_) {
    const bool is_own = shared.rank == comm_->rank();
    if (is_own && !backward_) continue;  // done
    if (Status taken = is_own ? add_own(shared, caller) : take(shared, caller); !taken) return taken;
  }
  if (exchange_ == nullptr) return {};
  exchange_->end();
  return lends() == 0 ? Status() : exchange_->await_readers();
}

Status Halo::clear_halos(void* caller) const {
  for (size_t f = 0; f < fields_.size(); ++f) {
    for (const HaloBox& box : kind(f).boxes) {
      if (box.owner == kBoxKept) continue;
      if (Status cleared = clear(box, fields_[f], caller); !cleared) return cleared;
    }
  }
  return {};
}

Status Halo::finish(void* caller) {
  if (fields_.empty()) return bad_state("mdp_halo_start has not been called");
  if (Status usable = comm_->context().usable(); !usable) return usable;
  return comm_->context().commit([&]() -> Status {
    if (exchange_ != nullptr) {
      if (Status come = exchange_->finish(comm_->channel().stream(), caller); !come) return come;
    }
    Status done = take_all(caller);
    if (done.ok() && backward_) done = clear_halos(caller);
    fields_.clear();
    if (!done || exchange_ == nullptr) return done;
    auto taken = comm_->channel().stream().follow_caller(caller);
    if (!taken) return taken.status();
    taken_ = *std::move(taken);
    return {};
  });
}

}  // namespace megadp
