# SPDX-License-Identifier: Apache-2.0
"""The stages of gpu_check that measure and trace."""
import json
import os
import re
import sqlite3

from gpu_check_run import Stop, row, tail

NUMEL = 1 << 28  # arrays of 1 GiB: nothing of them stays in a cache
LEAST_SHARE = 0.9  # of a copy's bytes per second


def answer(done):
    """The JSON line among what a program printed."""
    lines = [line for line in done.output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if done.good and lines else None


def speed(figures):
    return figures["bytes_per_s"] / 1e9


def bench_step(place, backend, param, grad, numel, rounds=20, rule="adamw"):
    command = [place.program("megadp"), "bench", "step", "--json", "--backend", backend, "--rule", rule, "--numel", numel, "--param-dtype", param,
               "--grad-dtype", grad, "--rounds", rounds]
    return place.check.run(command, 60, place.env)


def step(stage, place):
    backend, numel = ("cuda", NUMEL) if place.device else ("host", 1 << 22)
    runs = [("adamw", *types) for types in (("f32", "f32"), ("bf16", "f32"), ("bf16", "bf16"), ("f16", "f16"))]
    runs += [(rule, "f32", "f32") for rule in ("adam", "sgd", "sgd_momentum", "sgd_nesterov", "lion")]
    for rule, param, grad in runs:
        done = bench_step(place, backend, param, grad, numel, rule=rule)
        figures = answer(done)
        name = f"{rule}, parameters {param}, gradients {grad}"
        if figures is None:
            row(stage, name, False)
            stage["notes"].append(f"{name}: {done.how()}\n{tail(done)}")
            continue
        good = figures["host_syncs"] == 0 and (place.device is None or figures["update_to_copy"] >= LEAST_SHARE)
        row(stage, name, good, update_ms=figures["update"]["median_ms"], update_GB_per_s=speed(figures["update"]),
            square_sum_GB_per_s=speed(figures["square_sum"]), copy_GB_per_s=speed(figures["copy"]), update_to_copy=figures["update_to_copy"],
            square_sum_to_copy=figures["square_sum_to_copy"], host_syncs=figures["host_syncs"])
        if rule == "adamw":
            place.speeds[param, grad] = figures["update"]
    if place.device is None:
        stage["notes"].append("Without a device: the host backend, to see that the program works.")
    else:
        stage["notes"].append(f"Wanted: no wait of the host, and every update at {LEAST_SHARE:.0%} of the copy's bytes per second.")


def products(stage, place):
    place.need_device()
    done = place.check.run([place.program("cuda_gemm_speed"), place.plugin()], 60, place.env)
    if done.code == 77:
        raise Stop("skipped", done.output.strip())
    figures = answer(done)
    if figures is None:
        raise Stop("failed", f"cuda_gemm_speed: {done.how()}\n{tail(done)}")
    for dtype in ("f32", "bf16"):
        row(stage, dtype, True, size=figures["size"], cuBLASLt=figures["cublaslt"], ms=figures[dtype]["median_ms"],
            TFLOP_per_s=figures[dtype]["tflops"])
    stage["notes"].append("Each product alone between two events; whether they are right is said by cuda.device, in the stage plugin.")


def collectives(stage, place):
    place.need_device()
    for op in ("reduce_scatter", "all_reduce", "all_gather"):
        for ranks in (1, 2):
            command = [place.program("megadp"), "bench", "collectives", "--json", "--backend", "cuda", "--op", op, "--ranks", ranks, "--mib", 64]
            done = place.check.run(command, 30, place.env)
            figures = answer(done)
            row(stage, f"{op}, {ranks} rank{'s' if ranks > 1 else ''}", figures is not None, **(figures or {"how": done.how()}))
            if figures is None:
                stage["notes"].append(f"{op} on {ranks} ranks: {done.how()}\n{tail(done)}")
    stage["notes"].append("Two ranks share the device and are joined over the loopback: what they take says nothing about two devices.")


def torch(stage, place):
    place.need_device()
    for dtype in ("f32", "bf16"):
        done = place.check.run(["python3", "benchmarks/peers/torch_adamw.py", "--numel", NUMEL, "--dtype", dtype], 60)
        if done.code == 77:
            raise Stop("skipped", done.output.strip())
        figures = answer(done)
        if figures is None:
            row(stage, dtype, False)
            stage["notes"].append(f"{dtype}: {done.how()}\n{tail(done)}")
            continue
        ours = place.speeds.get((dtype, dtype))
        ratio = ours["bytes_per_s"] / figures["adamw"]["bytes_per_s"] if ours else None
        good = None if ratio is None else ratio >= 0.98 if dtype == "f32" else True  # the width of the noise
        row(stage, f"{figures['peer']}, {dtype}", good, AdamW_ms=figures["adamw"]["median_ms"], AdamW_GB_per_s=speed(figures["adamw"]),
            copy_GB_per_s=speed(figures["copy"]), ours_ms=ours["median_ms"] if ours else None, ours_to_torch=ratio)
    stage["notes"].append("In f32 both move the same bytes, and ours may not be slower (2 % are noise); in bf16 ours keeps fp32 values and "
                          "moments, so only bytes per second can be compared.")


def waits_in(report):
    """How often the host has waited, by function, in a trace exported by nsys."""
    rows = sqlite3.connect(report).execute(
        "SELECT s.value, COUNT(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON r.nameId = s.id GROUP BY s.value").fetchall()
    return {name: count for name, count in rows if re.search(r"Synchronize|Memcpy(?!.*Async)", name)}


def trace(stage, place):
    """A step must not wait: a run of many steps waits as often as a run of few, apart from the bench's own polling."""
    place.need_device()
    nsys = place.tool("nsys")
    if nsys is None:
        row(stage, "nsys", None, why="it is not here")
        done = bench_step(place, "cuda", "bf16", "f32", 1 << 20, 200)
        figures = answer(done)
        if figures is None:
            raise Stop("failed", f"bench step: {done.how()}\n{tail(done)}")
        row(stage, "the layer's own counter, 200 steps", figures["host_syncs"] == 0, host_syncs=figures["host_syncs"])
        return
    waits = []
    for rounds in (20, 200):
        report = os.path.join(place.build, f"trace-{rounds}")
        command = [nsys, "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true", "--export=sqlite", "-o", report,
                   place.program("megadp"), "bench", "step", "--json", "--backend", "cuda", "--numel", 1 << 20, "--rounds", rounds]
        done = place.check.run(command, 60, place.env)
        if not os.path.exists(f"{report}.sqlite"):
            raise Stop("skipped", f"nsys makes no report here: {done.how()}\n{tail(done)}")
        waits.append(waits_in(f"{report}.sqlite"))
        row(stage, f"{rounds} steps", True, waits=", ".join(f"{name} {count}" for name, count in sorted(waits[-1].items())))
    row(stage, "the same waits for 20 and 200 steps", waits[0] == waits[1])


def sanitizer(stage, place):
    place.need_device()
    program = place.tool("compute-sanitizer")
    if program is None:
        raise Stop("skipped", "compute-sanitizer is not here")
    subject = [place.program("cuda_device"), place.plugin(), "small"]
    options = {"memcheck": ["--leak-check", "full"], "racecheck": [], "synccheck": [], "initcheck": []}
    commands = {tool: [program, "--tool", tool, *more, "--error-exitcode", 99, *subject] for tool, more in options.items()}
    for tool, done in place.check.side_by_side(commands, 150, place.env).items():
        said = re.findall(r"^=+ ((?:ERROR|LEAK|RACECHECK) SUMMARY.*)$", done.output, re.M)
        # Initialisation is reported apart: what it cannot follow (copies by the driver) is not a defect by itself.
        row(stage, tool, done.good if tool != "initcheck" else (True if done.good else None), how=done.how(), summary="; ".join(said),
            seconds=round(done.seconds, 1))
        if not done.good:
            stage["notes"].append(f"{tool}: {done.how()}\n{tail(done)}")
