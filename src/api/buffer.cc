// SPDX-License-Identifier: Apache-2.0
// Buffers: registration, views, and what is known of them.
#include <algorithm>

#include "api/config.h"
#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"

using namespace megadp;

namespace {

template <class Lend>
mdp_status view_of(mdp_buffer* buffer, size_t param, mdp_tensor* out, const Lend& lend) {
  return guard([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::process); !status) return status;
    auto view = lend(*buffer->object, param);
    if (!view) return view.status();
    give_view(place_of(*buffer), *view, out);
    return {};
  });
}

std::vector<mdp_range> ranges_of(const Buffer& buffer) {
  std::vector<mdp_range> ranges;
  for (size_t arena = 0; arena < buffer.plan().arenas.size(); ++arena) {
    for (const OwnedRange& owned : buffer.arenas().all()[arena].owned) {
      mdp_range range{};
      range.arena = static_cast<int64_t>(arena);
      range.bucket = buffer.arenas().place(owned.param).bucket;
      range.param = static_cast<int64_t>(owned.param);
      range.begin = static_cast<int64_t>(owned.begin);
      range.end = static_cast<int64_t>(owned.end);
      range.param_begin = static_cast<int64_t>(owned.param_begin);
      ranges.push_back(range);
    }
  }
  return ranges;
}

}  // namespace

mdp_status mdp_buffer_register(mdp_comm* comm, mdp_grid* grid, const mdp_buffer_config* config, const mdp_param* params, size_t count,
                               mdp_buffer** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (comm != nullptr && grid != nullptr) return invalid("comm and grid are both given; a grid has its communicator, leave comm NULL");
    if (comm == nullptr && grid == nullptr) return invalid("comm is NULL and grid is NULL; give one of the two");
    if (comm != nullptr) {
      if (Status status = check_handle(comm, "comm", Need::alone_in_context); !status) return status;
    } else if (Status status = check_handle(grid, "grid", Need::alone_in_context); !status) {
      return status;
    }
    auto ours = take_buffer_config(config, "config");
    if (!ours) return ours.status();
    auto specs = take_params(params, count);
    if (!specs) return specs.status();
    auto cut = grid != nullptr ? Result(grid->object) : ProcessGrid::create(comm->object, {}, "mdp_buffer_register without a grid");
    if (!cut) return cut.status();
    auto buffer = Buffer::create(*cut, *ours, *std::move(specs));
    if (!buffer) return buffer.status();
    *out = new mdp_buffer(grid != nullptr ? grid->context : comm->context, *buffer);
    return {};
  });
}

mdp_status mdp_buffer_owned(mdp_buffer* buffer, mdp_range* ranges, size_t capacity, size_t* needed) {
  return guard([&]() -> Status {
    if (Status status = check_out(needed, "needed"); !status) return status;
    if (capacity > 0) {
      if (Status status = check_output(ranges, "ranges[0]"); !status) return status;
    }
    if (Status status = check_handle(buffer, "buffer", Need::process); !status) return status;
    const std::vector<mdp_range> owned = ranges_of(*buffer->object);
    *needed = owned.size();
    if (capacity == 0) return {};
    if (capacity < owned.size()) return invalid("capacity is ", capacity, "; this rank owns ", owned.size(), " ranges");
    give_array(owned, ranges);
    return {};
  });
}

mdp_status mdp_buffer_param_view(mdp_buffer* buffer, size_t param, mdp_tensor* out) {
  return view_of(buffer, param, out, [](Buffer& object, size_t i) { return object.arenas().param_view(i); });
}

mdp_status mdp_buffer_grad_view(mdp_buffer* buffer, size_t param, mdp_tensor* out) {
  return view_of(buffer, param, out, [](Buffer& object, size_t i) {
    auto view = object.arenas().grad_view(i);
    if (view) object.gradients().note_view();
    return view;
  });
}

mdp_status mdp_buffer_find(mdp_buffer* buffer, const char* name, size_t* param) {
  return guard([&]() -> Status {
    if (Status status = check_out(param, "param"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::process); !status) return status;
    if (name == nullptr) return invalid("name is NULL; it must be the name of a parameter");
    const Plan& plan = buffer->object->plan();
    const auto found = plan.find(name);
    if (!found) return invalid("name is '", name, "'; none of the ", plan.params.size(), " parameters is called so");
    *param = *found;
    return {};
  });
}

mdp_status mdp_buffer_counts(mdp_buffer* buffer, size_t* params, size_t* buckets) {
  return guard([&]() -> Status {
    if (Status status = check_out(params, "params"); !status) return status;
    if (Status status = check_out(buckets, "buckets"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::process); !status) return status;
    *params = buffer->object->plan().params.size();
    *buckets = buffer->object->plan().launch_order.size();
    return {};
  });
}

mdp_status mdp_buffer_broadcast(mdp_buffer* buffer, int32_t root, mdp_request** out) {
  return guard([&]() -> Status {
    if (Status status = check_request_out(out); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::all_ranks); !status) return status;
    auto request = prepare_request(out, buffer->context, buffer->object);
    auto pending = buffer->object->broadcast(root, out != nullptr);
    if (!pending) return pending.status();
    return give_request(std::move(request), *std::move(pending), out);
  });
}

mdp_status mdp_buffer_verify(mdp_buffer* buffer) {
  return guard([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::alone_in_context); !status) return status;
    return buffer->object->verify();
  });
}

mdp_status mdp_buffer_zero_grad(mdp_buffer* buffer, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::usable); !status) return status;
    if (Status status = check_stream(stream, "stream", place_of(*buffer)); !status) return status;
    return buffer->object->gradients().zero(stream);
  });
}

mdp_status mdp_buffer_stats(mdp_buffer* buffer, mdp_stats_report* out) {
  return guard([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::process); !status) return status;
    const Stats stats = buffer->object->gradients().stats();
    mdp_stats_report report{};
    report.comm_ns = stats.comm_ns;
    report.exposed_ns = stats.exposed_ns;
    report.bytes = stats.bytes;
    report.buckets = stats.buckets;
    report.launched_in_backward = stats.launched_in_backward;
    report.syncs = stats.syncs;
    report.host_syncs = stats.host_syncs;
    report.spill_peak_bytes = stats.spill_peak;
    report.large_gradients = stats.large_gradients;
    give(report, out);
    return {};
  });
}

mdp_status mdp_buffer_bucket(mdp_buffer* buffer, size_t bucket, mdp_bucket_report* out) {
  return guard([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::process); !status) return status;
    auto known = buffer->object->gradients().bucket(bucket);
    if (!known) return known.status();
    mdp_bucket_report report{};
    report.state = static_cast<mdp_bucket_state>(known->state);
    report.ready_ns = known->ready_ns;
    report.reduce_begin_ns = known->reduce_begin_ns;
    report.reduce_end_ns = known->reduce_end_ns;
    report.gather_begin_ns = known->gather_begin_ns;
    report.gather_end_ns = known->gather_end_ns;
    report.sync_ns = known->sync_ns;
    give(report, out);
    return {};
  });
}

mdp_status mdp_buffer_use_order(mdp_buffer* buffer, int32_t* use_order, size_t count) {
  return guard([&]() -> Status {
    if (Status status = check_out(use_order, "use_order"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::alone_in_context); !status) return status;
    const size_t params = buffer->object->plan().params.size();
    if (count != params) return invalid("count is ", count, "; this buffer has ", params, " parameters, give room for each");
    auto order = buffer->object->gradients().use_order();
    if (!order) return order.status();
    std::copy(order->begin(), order->end(), use_order);
    return {};
  });
}

void mdp_buffer_destroy(mdp_buffer* buffer) {
  destroy_handle(buffer);
}
