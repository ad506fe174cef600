# SPDX-License-Identifier: Apache-2.0
set(MEGADP_api_SOURCES)
