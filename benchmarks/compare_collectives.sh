#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The library, bare loops and OpenMPI on the same collectives, turn by turn in one run, because a machine is never equally busy twice.
# usage: compare_collectives.sh [RANKS [MIB [TURNS]]]      (2, 64, 3)      MEGADP: the program, by default build/bin/megadp
set -eu
here=$(cd "$(dirname "$0")" && pwd)
ranks=${1:-2} mib=${2:-64} turns=${3:-3}
megadp=${MEGADP:-$here/../build/bin/megadp}
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT

for op in reduce_scatter all_reduce all_gather; do
  turn=0
  while [ "$turn" -lt "$turns" ]; do
    "$megadp" bench collectives --op "$op" --ranks "$ranks" --mib "$mib" --dtype f32 --json >>"$lines"
    "$here/peers/openmpi.sh" "$op" "$ranks" "$mib" >>"$lines" || [ $? -eq 77 ]
    turn=$((turn + 1))
  done
done

# The median of the turns' medians.
python3 - "$lines" <<'PYTHON'
import json, statistics, sys

ours, peers = {}, {}
for line in open(sys.argv[1]):
    figures = json.loads(line)
    (peers if "peer" in figures else ours).setdefault(figures["op"], []).append(figures)
first = next(iter(ours.values()))[0]
print(f"{first['ranks']} ranks, {first['bytes']} bytes of f32 each; milliseconds")
print(f"{'':16}{'megadp':>10}{'bare loop':>11}{'memcpy':>10}{'OpenMPI':>10}{'megadp/loop':>13}{'OpenMPI/megadp':>16}")
for op, turns in ours.items():
    of = lambda rows, name: statistics.median(row[name] for row in rows)
    library, limit, copy = (of(turns, name) for name in ("median_ms", "limit_ms", "memcpy_ms"))
    peer = of(peers[op], "median_ms") if op in peers else None
    columns = f"{peer:10.3f}{library / limit:13.2f}{peer / library:16.2f}" if peer else f"{'-':>10}{library / limit:13.2f}{'-':>16}"
    print(f"{op:16}{library:10.3f}{limit:11.3f}{copy:10.3f}{columns}")
PYTHON
