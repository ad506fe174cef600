#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Collectives between nodes by the library, by OpenMPI and by PyTorch's Gloo, turn by turn in one run: nodes are network namespaces of this
# machine on one bridge, each with a cable of MBIT each way. Prints milliseconds, and the share of what the cables can carry for the fewest
# bytes that any algorithm needs. Needs root, iproute2 and, for what it compares with, OpenMPI, and a Python with PyTorch.
# usage: compare_between_nodes.sh [NODES [RANKS [MIB [MBIT [TURNS]]]]]     (2, 2 a node, 64, 2000, 3)
#        MEGADP, BETWEEN_NODES: the programs; PYTHON: that Python, by default python3
set -eu
here=$(cd "$(dirname "$0")" && pwd)
each=${2:-2} mib=${3:-64} mbit=${4:-2000} turns=${5:-3} rounds=3
megadp=${MEGADP:-$here/../build/bin/megadp} ours=${BETWEEN_NODES:-$here/../build/bin/bench_between_nodes}
compiler=$(command -v mpicc.openmpi || command -v mpicc || true)
launcher=$(command -v mpirun.openmpi || command -v mpirun || true)
. "$here/nodes.sh"
make_nodes "${1:-2}" "$mbit"

by_us() {
  start_ranks "$each" "$ours" "$mib" "$rounds"
  sed 's/^/megadp /' "$work/out.0" >>"$work/lines"
}

# OpenMPI starts its daemons by a remote shell, which is this.
cat >"$work/shell" <<END
#!/bin/bash
host=\$1
shift
exec ip netns exec "$net-\$((\${host##*.} - 1))" unshare --uts bash -c "hostname node\$((\${host##*.} - 1)); \$*"
END
chmod +x "$work/shell"
[ -z "$compiler" ] || "$compiler" -std=gnu99 -O3 -DWITH_MPI -o "$work/peer" "$here/between_nodes.c"
by_openmpi() {
  local hosts="" i
  for ((i = 0; i < nodes; ++i)); do hosts+=${hosts:+,}10.77.0.$((i + 1)):$each; done
  node 0 "$launcher" --allow-run-as-root --oversubscribe --mca plm_rsh_agent "$work/shell" --mca btl tcp,vader,self --mca pml ob1 \
    --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --host "$hosts" -n $((each * nodes)) "$work/peer" "$mib" "$rounds" |
    sed 's/^/openmpi /' >>"$work/lines"
}

python=${PYTHON:-python3}
"$python" -c "import torch" 2>/dev/null || python=
by_gloo() {
  local ranks=() i rank
  for ((rank = each * nodes - 1; rank >= 0; --rank)); do
    i=$((rank / each))
    node "$i" env RANK="$rank" WORLD_SIZE=$((each * nodes)) MASTER_ADDR=10.77.0.1 MASTER_PORT=2223 GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 \
      "$python" "$here/peers/torch_between_nodes.py" "$mib" "$rounds" >"$work/gloo.$rank" &
    ranks+=($!)
  done
  for i in "${ranks[@]}"; do wait "$i"; done
  sed 's/^/gloo /' "$work/gloo.0" >>"$work/lines"
}

for ((turn = 0; turn < turns; ++turn)); do
  by_us
  [ -z "$compiler" ] || [ -z "$launcher" ] || by_openmpi
  [ -z "$python" ] || by_gloo
done

python3 - "$work/lines" "$nodes" "$each" "$mib" "$mbit" <<'PYTHON'
import statistics, sys

rows = [line.split() for line in open(sys.argv[1])]
nodes, each, mib, mbit = map(int, sys.argv[2:6])
whole_ms = mib * 1048576 * 8 / mbit / 1e3
# Of an array, what a cable carries one way.
least = {"all_reduce": 2 * (nodes - 1) / nodes, "reduce_scatter": (nodes - 1) / nodes, "all_gather": (nodes - 1) / nodes, "broadcast": 1}
print(f"{nodes} nodes of {each} ranks, {mib} MiB of f32, {mbit} Mbit/s; milliseconds, medians")
print(f"{'':16}{'megadp':>9}{'OpenMPI':>9}{'Gloo':>9}{'cable':>9}{'share':>7}")
for name, share in least.items():
    ms = {who: statistics.median([float(row[2]) for row in rows if row[:2] == [who, name]] or [float("nan")]) for who in ("megadp", "openmpi", "gloo")}
    print(f"{name:16}{ms['megadp']:9.1f}{ms['openmpi']:9.1f}{ms['gloo']:9.1f}{whole_ms * share:9.1f}{whole_ms * share / ms['megadp']:7.2f}")
PYTHON
