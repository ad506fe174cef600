#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Halos of a field of 4096 x 4096 f32 by the library and by OpenMPI (derived types, spinning and yielding), turn by turn in one run.
# usage: compare_halos.sh [ROWS COLUMNS [TURNS]]      (2 2 3)      MEGADP, BENCH_HALO: the programs, by default in build/bin
set -eu
here=$(cd "$(dirname "$0")" && pwd)
rows=${1:-2} columns=${2:-2} turns=${3:-3}
ranks=$((rows * columns))
megadp=${MEGADP:-$here/../build/bin/megadp} ours=${BENCH_HALO:-$here/../build/bin/bench_halo}
compiler=$(command -v mpicc.openmpi || command -v mpicc || true)
launcher=$(command -v mpirun.openmpi || command -v mpirun || true)
lines=$(mktemp)
peer=$(mktemp)
trap 'rm -f "$lines" "$peer"' EXIT
[ -z "$compiler" ] || "$compiler" -std=c99 -O3 -o "$peer" "$here/peers/openmpi_halo.c"

for width in 1 8 32 128 256; do
  exchanges=$((width < 32 ? 50 : 10))
  turn=0
  while [ "$turn" -lt "$turns" ]; do
    "$megadp" run -n "$ranks" --no-prefix "$ours" 4096 "$rows" "$columns" "$width" 15 "$exchanges" >>"$lines"
    for idle in 0 1; do
      [ -z "$launcher" ] || "$launcher" --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle "$idle" -n "$ranks" "$peer" \
        4096 "$rows" "$columns" "$width" 15 "$exchanges" | sed "s/openmpi/openmpi $idle/" >>"$lines"
    done
    turn=$((turn + 1))
  done
done

python3 - "$lines" "$rows x $columns" <<'PYTHON'
import json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
of = lambda library, width, name: statistics.median([row[name] for row in rows if row["library"] == library and row["width"] == width] or [float("nan")])
print(f"{sys.argv[2]} ranks, 4096 x 4096 f32; microseconds an exchange (medians); OpenMPI: spinning, yielding")
print(f"{'width':>6}{'bytes':>9}{'megadp':>9}{'copy':>9}{'/copy':>7}{'messages':>18}{'alltoallw':>18}{'best MPI/ours':>14}{'hidden':>8}")
for width in sorted({row["width"] for row in rows}):
    ours, copy = of("megadp", width, "exchange_us"), of("megadp", width, "copy_us")
    mpi = [[of(f"openmpi {idle}", width, name) for idle in (0, 1)] for name in ("messages_us", "alltoallw_us")]
    texts = [f"{a:9.1f}{b:9.1f}" for a, b in mpi]
    print(f"{width:6}{of('megadp', width, 'sent'):9.0f}{ours:9.1f}{copy:9.1f}{ours / copy:7.2f}{texts[0]}{texts[1]}"
          f"{min(min(mpi[0]), min(mpi[1])) / ours:14.2f}{of('megadp', width, 'hidden'):8.2f}")
PYTHON
