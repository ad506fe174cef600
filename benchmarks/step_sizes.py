#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An optimizer step at sizes around powers of two, where arrays may come to lie badly: `megadp bench step` at 2^24 to 2^27 elements and at
those 12345 off. Prints the speed of AdamW as a ratio to a copy of as many bytes in the same round (median of the rounds), and of all sizes
the lowest ratio over the highest, for each pair of types and for all of them. Sizes and programs take turns, so that what else the machine
does meets them all.

usage: step_sizes.py [--rounds N] [--repeat N] [--backend host|cuda] MEGADP...      (several programs are compared)
"""
import argparse
import json
import statistics
import subprocess

TYPES = (("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16"))  # of parameters and gradients
SIZES = [(power, off) for power in (24, 25, 26, 27) for off in (-12345, 0, 12345)]


def measure(options, program, types, size):
    command = [program, "bench", "step", "--backend", options.backend, "--numel", str(2 ** size[0] + size[1]), "--rounds", str(options.rounds),
               "--param-dtype", types[0], "--grad-dtype", types[1], "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeat", type=int, default=1, help="the median of so many runs of each size")
    parser.add_argument("--backend", default="host")
    parser.add_argument("programs", nargs="+", metavar="MEGADP")
    options = parser.parse_args()
    found = {program: {types: [] for types in TYPES} for program in options.programs}
    print(f"{'elements':>16} {'types':>10} {'ratio':>6} {'GB/s':>6}  program")
    for types in TYPES:
        for size in SIZES:
            runs = {program: [] for program in options.programs}
            for _ in range(options.repeat):
                for program in options.programs:
                    runs[program].append(measure(options, program, types, size))
            for program in options.programs:
                ratio = statistics.median(run["update_to_copy"] for run in runs[program])
                speed = statistics.median(run["update"]["bytes_per_s"] for run in runs[program]) / 1e9
                found[program][types].append(ratio)
                print(f"{f'2^{size[0]}{size[1]:+}':>16} {'/'.join(types):>10} {ratio:6.3f} {speed:6.1f}  {program}", flush=True)
    for program, by_types in found.items():
        every = [ratio for ratios in by_types.values() for ratio in ratios]
        for name, ratios in [("/".join(types), ratios) for types, ratios in by_types.items()] + [("all", every)]:
            print(f"{program}: {name}: lowest {min(ratios):.3f}, highest {max(ratios):.3f}, lowest / highest {min(ratios) / max(ratios):.3f}")


if __name__ == "__main__":
    main()
