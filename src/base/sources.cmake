# SPDX-License-Identifier: Apache-2.0
set(MEGADP_base_SOURCES fd.cc log.cc status.cc text.cc thread.cc)
