# SPDX-License-Identifier: Apache-2.0
# To be sourced: nodes that are network namespaces of this machine on one bridge, each with a cable of so many Mbit a second each way, which
# are gone when the script that made them ends. Needs root and iproute2.
#
#   make_nodes COUNT MBIT      node I is 10.77.0.(I + 1); $work is a folder for the script, which is removed too
#   node I COMMAND...          as on a machine of its own
#   start_ranks EACH COMMAND...    EACH ranks of one job on every node, by `$megadp run`; what those of node I print goes to $work/out.I
net=mdpb$$
nodes=0
work=$(mktemp -d)

remove_nodes() {
  local i
  for ((i = 0; i < nodes; ++i)); do
    ip netns pids "$net-$i" 2>/dev/null | xargs -r kill 2>/dev/null || true
    ip netns del "$net-$i" 2>/dev/null || true
  done
  ip link del "$net" 2>/dev/null || true
  rm -rf "$work"
}
trap remove_nodes EXIT

make_nodes() {
  local i cable=(root tbf rate "$2mbit" burst 256kb latency 50ms)
  nodes=$1
  ip link add "$net" type bridge
  ip link set "$net" up
  for ((i = 0; i < nodes; ++i)); do
    ip netns add "$net-$i"
    ip link add "$net.$i" type veth peer name eth0 netns "$net-$i"
    ip link set "$net.$i" master "$net" up
    ip -n "$net-$i" address add "10.77.0.$((i + 1))/24" dev eth0
    ip -n "$net-$i" link set eth0 up
    ip -n "$net-$i" link set lo up
    ip netns exec "$net-$i" tc qdisc add dev eth0 "${cable[@]}"
    tc qdisc add dev "$net.$i" "${cable[@]}"
  done
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/secret"
  chmod 600 "$work/secret"
}

node() {
  local i=$1
  shift
  ip netns exec "$net-$i" unshare --uts bash -c "hostname node$i; exec \"\$@\"" - "$@"
}

start_ranks() {
  local each=$1 others=() i
  shift
  for ((i = nodes - 1; i >= 0; --i)); do
    node "$i" "$megadp" run -n "$each" --nranks $((each * nodes)) --first-rank $((i * each)) --root 10.77.0.1:2222 \
      --secret-file "$work/secret" --no-prefix "$@" >"$work/out.$i" &
    others+=($!)
  done
  for i in "${others[@]}"; do wait "$i"; done
}
