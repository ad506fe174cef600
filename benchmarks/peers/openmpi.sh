#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Times one collective by OpenMPI and prints a line of JSON like that of `megadp bench collectives --json`.
# usage: openmpi.sh reduce_scatter|all_reduce|all_gather [RANKS [MIB [ROUNDS]]]      (2, 64, 20)
# With `sweep` in place of ROUNDS a line for every size from 8 bytes to MIB, as those of `megadp bench collectives --sweep --json`.
# Exit status 77 where there is no OpenMPI with its compiler wrapper.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
op=${1:?"which collective: reduce_scatter, all_reduce or all_gather"}
ranks=${2:-2} mib=${3:-64} rounds=${4:-20}

# Debian keeps the names of OpenMPI and MPICH apart; elsewhere there is one of them.
compiler=$(command -v mpicc.openmpi || command -v mpicc || true)
launcher=$(command -v mpirun.openmpi || command -v mpirun || true)
if [ -z "$compiler" ] || [ -z "$launcher" ] || ! "$launcher" --version 2>/dev/null | grep -qE 'OpenRTE|Open MPI'; then
  echo "openmpi.sh: OpenMPI is not installed (Debian: openmpi-bin, libopenmpi-dev)" >&2
  exit 77
fi

build=${MEGADP_PEERS_BUILD:-$here/../../build/benchmarks}
mkdir -p "$build"
program=$build/openmpi_collectives
if [ ! -x "$program" ] || [ "$here/openmpi_collectives.c" -nt "$program" ]; then
  "$compiler" -std=c99 -O3 -o "$program.$$" "$here/openmpi_collectives.c"
  mv "$program.$$" "$program"
fi
# --oversubscribe: OpenMPI counts cores, not hardware threads. Root is what containers run as.
exec "$launcher" --allow-run-as-root --oversubscribe -n "$ranks" "$program" "$op" $((mib * 1048576)) "$rounds"
