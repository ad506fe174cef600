#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the CUDA backend on a machine with a GPU, and writes what it found to docs/gpu/ as JSON and Markdown. Needs no network there: what
such a machine lacks is collected by --pack, and nothing is installed. Without a device it goes as far as it can."""
import argparse
import os
import shutil
import sys
import time

import gpu_check_pack as pack
import gpu_check_report as report
import gpu_check_speed as speed
import gpu_check_stages as stages
from gpu_check_run import LIMIT, Check

NO_DEVICE = 3  # the exit code of a run that found none and had not been told so
STAGES = (
    ("machine", "what this machine is and has", stages.look_around),
    ("configure", "cmake, with the CUDA backend required", stages.configure),
    ("build", "the library, the plugin, the program, the example and the tests that follow", stages.build),
    ("info", "what megadp info says of the backends", stages.info),
    ("plugin", "the tests of the plugin (ctest, suite cuda)", stages.plugin_tests),
    ("example", f"examples/c/gpt, 50 steps, on the device and on the host: losses equal to {pack.LOSS_LIMIT:g}", stages.example),
    ("step", "megadp bench step: the optimizer's kernels beside a copy of as many bytes", speed.step),
    ("torch", "PyTorch's fused AdamW beside it (benchmarks/peers/torch_adamw.py)", speed.torch),
    ("products", "matrix products by cuBLASLt, 4096 x 4096 x 4096", speed.products),
    ("collectives", "megadp bench collectives on device windows, 64 MiB", speed.collectives),
    ("trace", "that a step makes the host wait for nothing", speed.trace),
    ("conformance", "conformance_test cuda, ranks as processes on one device", stages.conformance),
    ("sanitizer", "compute-sanitizer on the tests of the kernels", speed.sanitizer),
    ("capi", "the tests of the C interface (ctest, suite capi)", stages.capi),
    ("python", "the tests of megadp.torch with PyTorch's tensors on the device, two ranks and more on it", stages.torch_tests),
)
STAGE_NAMES = [name for name, _, _ in STAGES]


def chosen(text):
    """The stages that are named, after the one that says what the machine is: the others build upon it."""
    wanted = text.split(",")
    unknown = [name for name in wanted if name not in STAGE_NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no stage; the stages are {', '.join(STAGE_NAMES)}")
    return STAGE_NAMES[:1] + [name for name in STAGE_NAMES[1:] if name in wanted]


def parse(arguments):
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__,
                                     epilog="Exit code: 0 every stage passed or was skipped with a reason, 1 one failed, 3 there was no device.")
    parser.add_argument("--pack", action="store_true", help=f"collect what a GPU machine lacks into {pack.FOLDER}/, under 50 MiB, and stop")
    parser.add_argument("--no-device", action="store_true", help="this machine has no device: 0 where all that needs none has passed")
    parser.add_argument("--out", metavar="DIR", help="where the pages go (docs/gpu; without a device the build folder)")
    parser.add_argument("--build", default="build-gpu", metavar="DIR", help="where to build (build-gpu)")
    parser.add_argument("--only", type=chosen, metavar="STAGE,...",
                        help=f"of what is built in --build already, these stages alone: {', '.join(STAGE_NAMES[1:])}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="compilers at a time (one for each core)")
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="SECONDS", help=f"for the whole run ({LIMIT}); more on a slow machine")
    return parser.parse_args(arguments)


def run(check, place, only):
    for name, what, work in STAGES:
        if only and name not in only:
            continue
        good = check.stage(name, what, lambda found, work=work: work(found, place))
        if name == "configure" and not good:
            return


def main():
    options = parse(sys.argv[1:])
    out, build = options.out and os.path.abspath(options.out), os.path.abspath(options.build)
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    if options.pack:
        return pack.pack()
    begin = time.monotonic()
    os.makedirs(build, exist_ok=True)
    log = os.path.join(build, "gpu_check.log")
    check = Check(options.limit, log)
    place = stages.Place(check, build, options.jobs)
    place.speeds = {}
    try:
        run(check, place, options.only)
    finally:  # what was found is kept, whatever ends the run
        folder = out or (os.path.abspath("docs/gpu") if place.device else build)
        path, verdict = report.write(folder, place.device, options.only, check.stages, time.monotonic() - begin)
        if out:
            shutil.copy(log, f"{path}.log")
    print(f"\n{verdict}\n{path}.md, {path}.json; all that was printed: {log}")
    if any(stage["outcome"] == "failed" for stage in check.stages):
        return 1
    if place.device is None and not options.no_device:
        print("gpu_check: there is no device on this machine, so it stopped after what needs none; --no-device says that this was meant",
              file=sys.stderr)
        return NO_DEVICE
    return 0


sys.exit(main())
