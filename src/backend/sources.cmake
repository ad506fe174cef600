# SPDX-License-Identifier: Apache-2.0
set(MEGADP_backend_SOURCES
    registry.cc
    world.cc
    bootstrap/attendance.cc
    bootstrap/frame.cc
    bootstrap/job_key.cc
    bootstrap/link.cc
    bootstrap/monitor.cc
    bootstrap/monitor_frames.cc
    bootstrap/monitor_thread.cc
    bootstrap/process.cc
    bootstrap/reception.cc
    bootstrap/relay.cc
    bootstrap/rendezvous.cc
    bootstrap/socket.cc)
