#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How much of the communication between nodes the GPT example hides: a rank alone says what a step computes, the model's bytes and the
# cable say what it must communicate, and the batch is chosen for the ratio of the two. Nodes are network namespaces of this machine
# (nodes.sh). Prints milliseconds a step, the part that is exposed, and the bound: what no order of work can hide, as of a reduction the last
# bucket comes after all computing, and of a gather the first one before it.
# usage: compare_gpt.sh [NODES [RANKS [MBIT [RATIO...]]]]     (2, 1 a node, 2000, 2 1.25)     MEGADP, GPT: the programs
set -eu
here=$(cd "$(dirname "$0")" && pwd)
each=${2:-1} mbit=${3:-2000}
megadp=${MEGADP:-$here/../build/bin/megadp} gpt=${GPT:-$here/../build/bin/gpt}
. "$here/nodes.sh"
make_nodes "${1:-2}" "$mbit"
ratios=("${@:4}")
[ ${#ratios[@]} -gt 0 ] || ratios=(2 1.25)
context=16 steps=12
model=(--layers 4 --width 384 --heads 6 --context $context --json --no-hash --bucket-size 500000)

# Milliseconds a step, the median without the first two, of a run whose lines are in a file.
step_ms() {
  python3 -c 'import json, statistics, sys
tokens = float(sys.argv[2])
lines = [json.loads(line) for line in open(sys.argv[1])]
print(statistics.median(tokens * 1e3 / line["tokens_per_s"] for line in lines[2:] if "tokens_per_s" in line))' "$1" "$2"
}
# alone BATCH: as many lone ranks as there will be, at the same time, as they share the processors and the memory.
alone() {
  local i others=()
  for ((i = 1; i < nodes * each; ++i)); do
    "$gpt" "${model[@]}" --steps "$steps" --batch "$1" >/dev/null &
    others+=($!)
  done
  "$gpt" "${model[@]}" --steps "$steps" --batch "$1" >"$work/alone"
  wait "${others[@]}"
  step_ms "$work/alone" "$(($1 * context))"
}

small=$(alone 4) large=$(alone 16)
echo "$nodes nodes of $each ranks, $mbit Mbit/s; milliseconds a step"
echo "ratio  batch  computing  communicating  step  exposed %  bound  step / bound"
for ratio in "${ratios[@]}"; do
  # What a cable carries one way of the gradients, and again of the parameters.
  numbers=$(python3 -c 'import json, sys
nodes, mbit, ratio, small, large = map(float, sys.argv[2:])
plan = next(json.loads(line)["plan"] for line in open(sys.argv[1]) if "plan" in line)
ms = plan["param_bytes"] * 8 / mbit / 1e3 * (nodes - 1) / nodes
print(ms, max(1, round(4 + (ratio * 2 * ms - small) / ((large - small) / 12))))' "$work/alone" "$nodes" "$mbit" "$ratio" "$small" "$large")
  read -r one_way batch <<<"$numbers"
  computing=$(alone "$batch")
  start_ranks "$each" "$gpt" "${model[@]}" --steps "$steps" --batch $((batch * nodes * each))
  step=$(step_ms "$work/out.0" $((batch * nodes * each * context)))
  python3 -c 'import json, sys
ratio, batch, computing, one_way, step = map(float, sys.argv[2:7])
buckets = next(json.loads(line)["summary"]["buckets"] for line in open(sys.argv[1]) if "summary" in line) / int(sys.argv[7])
forward, first = computing / 3, one_way / buckets
bound = computing + 2 * first + max(0, one_way - first - forward) + max(0, one_way - first - 2 * forward)
print(f"{ratio:5.2f} {batch:6.0f} {computing:10.1f} {2 * one_way:14.1f} {step:5.1f} {100 * (step - computing) / step:10.1f} {bound:6.1f} {step / bound:13.2f}")' \
    "$work/out.0" "$ratio" "$batch" "$computing" "$one_way" "$step" "$steps"
done
