// SPDX-License-Identifier: Apache-2.0
// UcxLibrary: the functions of libucp that the transport between nodes uses, loaded by name when they are first needed. Never linked: as it
// loads, UCX takes over fatal signals and SIGHUP and patches libc's memory calls, unless variables that it reads at that moment say
// otherwise. They are put into the environment just before and taken out right after, so that child processes inherit nothing. The
// one header that includes ucp.h.
#pragma once

#include <string>

#include "base/status.h"
#include "base/symbol.h"

#ifdef MEGADP_HAVE_UCX
#include <ucp/api/ucp.h>
#endif

namespace megadp::host {

struct UcxLibrary {
#ifdef MEGADP_HAVE_UCX
  Symbols find;
  decltype(&ucp_get_version) get_version = find("ucp_get_version");
  decltype(&ucp_config_read) config_read = find("ucp_config_read");
  decltype(&ucp_config_modify) config_modify = find("ucp_config_modify");
  decltype(&ucp_config_release) config_release = find("ucp_config_release");
  decltype(&ucp_init_version) init_version = find("ucp_init_version");
  decltype(&ucp_cleanup) cleanup = find("ucp_cleanup");
  decltype(&ucp_worker_create) worker_create = find("ucp_worker_create");
  decltype(&ucp_worker_destroy) worker_destroy = find("ucp_worker_destroy");
  decltype(&ucp_worker_get_address) worker_get_address = find("ucp_worker_get_address");
  decltype(&ucp_worker_release_address) worker_release_address = find("ucp_worker_release_address");
  decltype(&ucp_worker_get_efd) worker_get_efd = find("ucp_worker_get_efd");
  decltype(&ucp_worker_arm) worker_arm = find("ucp_worker_arm");
  decltype(&ucp_worker_progress) worker_progress = find("ucp_worker_progress");
  decltype(&ucp_ep_create) ep_create = find("ucp_ep_create");
  decltype(&ucp_ep_close_nbx) ep_close_nbx = find("ucp_ep_close_nbx");
  decltype(&ucp_worker_flush_nbx) worker_flush_nbx = find("ucp_worker_flush_nbx");
  decltype(&ucp_tag_send_nbx) tag_send_nbx = find("ucp_tag_send_nbx");
  decltype(&ucp_tag_recv_nbx) tag_recv_nbx = find("ucp_tag_recv_nbx");
  decltype(&ucp_request_cancel) request_cancel = find("ucp_request_cancel");
  decltype(&ucp_request_check_status) request_check_status = find("ucp_request_check_status");
  decltype(&ucp_request_free) request_free = find("ucp_request_free");
  decltype(&ucs_status_string) status_string = find("ucs_status_string");  // of libucs, which libucp brings along
#endif

  // Loads on the first call; the outcome is kept for the life of the process. Any thread.
  static Result<const UcxLibrary*> get();
};

}  // namespace megadp::host
