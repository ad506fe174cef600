# SPDX-License-Identifier: Apache-2.0
set(MEGADP_backend_SOURCES group.cc notice.cc)
