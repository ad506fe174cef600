// SPDX-License-Identifier: Apache-2.0
// What this library is and what it sees: mdp_version, mdp_info, the log callback.
#include <sched.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "api/backends.h"
#include "api/error.h"
#include "api/intake.h"
#include "control/launch/launch.h"

using namespace megadp;

namespace {

using Json = nlohmann::ordered_json;

// Which sanitizers the library was built with; GCC and Clang say it in different ways.
std::string sanitizers() {
  std::string names;
#if defined(__SANITIZE_ADDRESS__)
  names += "address";
#endif
#if defined(__SANITIZE_THREAD__)
  names += "thread";
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
  names += "address";
#endif
#if __has_feature(thread_sanitizer)
  names += "thread";
#endif
#endif
  return names;
}

Json build_info() {
  Json build;
  build["description"] = MEGADP_BUILD;
  build["compiler"] = __VERSION__;
#if defined(NDEBUG)
  build["assertions"] = false;
#else
  build["assertions"] = true;
#endif
  build["sanitizers"] = sanitizers();
  return build;
}

Json backend_info() {
  Json backends = Json::array();
  for (const BackendInfo& backend : list_backends()) {
    backends.push_back({{"name", backend.name}, {"available", backend.available}, {"detail", backend.detail}});
  }
  return backends;
}

Json transport_info() {
  const BackendInfo transport = transport_between_nodes();
  return {{"name", transport.name}, {"available", transport.available}, {"detail", transport.detail}};
}

// "0-3,8": the cores this process may run on.
std::string affinity(int* count) {
  constexpr int kCores = 4096;
  cpu_set_t* set = CPU_ALLOC(kCores);
  if (set == nullptr) throw std::bad_alloc();
  const size_t bytes = CPU_ALLOC_SIZE(kCores);
  std::string list;
  *count = 0;
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int core = 0; core < kCores; ++core) {
      if (!CPU_ISSET_S(core, bytes, set)) continue;
      const int first = core;
      while (core + 1 < kCores && CPU_ISSET_S(core + 1, bytes, set)) ++core;
      list += text(list.empty() ? "" : ",", first);
      if (core > first) list += text("-", core);
      *count += core - first + 1;
    }
  }
  CPU_FREE(set);
  return list;
}

Json machine_info() {
  int usable = 0;
  const std::string list = affinity(&usable);
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  Json machine;
  machine["host"] = host;
  machine["pid"] = getpid();
  machine["cores"] = sysconf(_SC_NPROCESSORS_ONLN);
  machine["usable_cores"] = usable;
  machine["affinity"] = list;
  machine["page_bytes"] = sysconf(_SC_PAGESIZE);
  machine["memory_bytes"] = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return machine;
}

// What mdp_comm_create would find without an id.
Json launch_info() {
  Json launch;
  launch["variables"] = launcher_variables();
  const auto found = launch_from_environment();
  launch["ok"] = found.ok();
  if (!found) {
    launch["error"] = found.status().text();
    return launch;
  }
  launch["launcher"] = found->launcher;
  launch["rank"] = found->rank;
  launch["size"] = found->nranks;
  launch["root"] = found->root_port == 0 ? "" : text(found->root_host, ":", found->root_port);
  return launch;
}

}  // namespace

uint32_t mdp_version(void) {
  return MDP_VERSION;
}

mdp_status mdp_info(char* json, size_t capacity, size_t* needed) {
  return guard([&]() -> Status {
    if (Status status = check_text_output(json, capacity, needed); !status) return status;
    Json info;
    info["version"] = MEGADP_VERSION_STRING;
    info["abi"] = MDP_VERSION_MAJOR;
    info["build"] = build_info();
    info["backends"] = backend_info();
    info["transport"] = transport_info();
    info["machine"] = machine_info();
    info["launch"] = launch_info();
    // Host names and variables may hold any bytes; JSON is UTF-8.
    return give_text(info.dump(-1, ' ', false, Json::error_handler_t::replace), json, capacity, needed);
  });
}

mdp_status mdp_log_set(mdp_log_fn fn, void* user) {
  return guard([&]() -> Status {
    set_log(fn, user);
    return {};
  });
}
