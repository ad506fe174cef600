#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Small all-reduces by the library and by OpenMPI, spinning and yielding, turn by turn in one run; microseconds, medians of the turns' medians
# and of their means. Where ranks share processors the two tell different things: every other call finds that all have come and takes a
# fraction of a microsecond, the next one waits for its turn on the processor.
# usage: compare_small.sh [--json] [RANKS [TURNS]]      (2 3)      MEGADP, BENCH_SMALL: the programs, by default in build/bin
# --json: a line for each size and contender, with every turn's median and mean, in place of the table.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
form=table
if [ "${1-}" = --json ]; then
  form=json
  shift
fi
ranks=${1:-2} turns=${2:-3}
megadp=${MEGADP:-$here/../build/bin/megadp} ours=${BENCH_SMALL:-$here/../build/bin/bench_small_all_reduce}
compiler=$(command -v mpicc.openmpi || command -v mpicc || true)
launcher=$(command -v mpirun.openmpi || command -v mpirun || true)
lines=$(mktemp)
peer=$(mktemp)
trap 'rm -f "$lines" "$peer"' EXIT
[ -z "$compiler" ] || "$compiler" -std=gnu99 -O3 -DWITH_MPI -o "$peer" "$here/small_all_reduce.c"

# Ranks that spin while others have no core take a slice of the scheduler's for each message: minutes, and nobody runs them so.
idles='0 1'
[ "$ranks" -le "$(nproc)" ] || idles=1

turn=0
while [ "$turn" -lt "$turns" ]; do
  "$megadp" run -n "$ranks" --no-prefix "$ours" | sed 's/^/megadp /' >>"$lines"
  for idle in $idles; do
    [ -z "$launcher" ] || "$launcher" --allow-run-as-root --oversubscribe --mca mpi_yield_when_idle "$idle" -n "$ranks" "$peer" |
      sed "s/^/openmpi-$idle /" >>"$lines"
  done
  turn=$((turn + 1))
done

python3 - "$lines" "$ranks" "$form" <<'PYTHON'
import json, statistics, sys

rows = [line.split() for line in open(sys.argv[1])]
names = ["megadp", "openmpi-0", "openmpi-1"]
if sys.argv[3] == "json":
    for name, size in sorted({(row[0], int(row[1])) for row in rows}):
        turns = [float(row[2]) for row in rows if row[0] == name and int(row[1]) == size]
        means = [float(row[5]) for row in rows if row[0] == name and int(row[1]) == size]
        print(json.dumps({"contender": name, "ranks": int(sys.argv[2]), "bytes": size, "us": turns, "mean_us": means}))
    sys.exit()
print(f"{sys.argv[2]} ranks; all-reduce, microseconds: median (tenth to ninetieth percentile), mean")
print(f"{'bytes':>8}{'megadp':>32}{'OpenMPI, spinning':>32}{'OpenMPI, yielding':>32}  ours/best: {'median':>6}{'mean':>6}")
for size in sorted({int(row[1]) for row in rows}):
    of = lambda name, k: statistics.median([float(row[k]) for row in rows if row[0] == name and int(row[1]) == size] or [float("nan")])
    cells = [f"{of(name, 2):9.2f} ({of(name, 3):.2f} to {of(name, 4):.2f}), {of(name, 5):.2f}" for name in names]
    best = lambda k: min((of(name, k) for name in names[1:] if of(name, k) > 0), default=float("nan"))  # one that was not run is not a number
    shares = [of("megadp", k) / best(k) for k in (2, 5)]
    print(f"{size:8}" + "".join(f"{cell:>32}" for cell in cells) + f"{shares[0]:19.2f}{shares[1]:6.2f}")
PYTHON
