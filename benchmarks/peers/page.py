# SPDX-License-Identifier: Apache-2.0
"""docs/performance.md from the results of `run`: tables, and sentences that follow from figures. Nothing on it is typed by hand but what it
says of how things were measured."""
import statistics

import plots

SHOWN = [8, 64, 512, 4096, 32768, 262144, 2097152, 16777216, 67108864]
OURS = ("megadp, windows", "megadp, user memory")
PEERS = ("Open MPI", "Gloo")
RATIOS = (("Open MPI", OURS[0]), ("Open MPI", OURS[1]), ("Gloo", OURS[1]))  # Gloo's to windows are larger still
LEAST_BANDWIDTH = 4096  # below that a call's time is all there is to say
LEAST_SHARE = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}  # times (ranks - 1) / ranks
CLOSE = 0.03  # nearer than that is called as fast

HEAD = """# Performance

megadp beside what else there is for the same work, side by side in one run on one machine. This page, its plots and
[the figures of every turn](performance/results.json) are written by [`benchmarks/peers/run`](../benchmarks/peers/run).
**What counts are ratios between contenders of one table**; absolute times are those of the machine below, and say
little about another. Contenders take turns, each turn begins with another one, and a figure is the median over the
turns, with the least and the most of them in brackets. A ratio is the other's time over megadp's: **below 1 megadp is
the slower one**, and such ratios are in bold."""

AGAIN = """## Again, on your machine

```sh
scripts/setup && scripts/build
python3 -m venv peers && peers/bin/pip install torch numpy ninja py-cpuinfo setuptools wheel
peers/bin/pip install --no-build-isolation deepspeed    # its op is compiled when it is first used
benchmarks/peers/run --python peers/bin/python          # everything, about 25 minutes; --quick: a trial of a few
benchmarks/peers/run --python peers/bin/python --only adamw,training
benchmarks/peers/run --page-only                        # page and plots from results.json
```

Open MPI is `openmpi-bin` and `libopenmpi-dev` on Debian. What is not installed is left out, and named. The machine should do nothing
else meanwhile."""

COLLECTIVES = """The whole buffer of a rank has the bytes that are given, in f32; calls follow one another, and the
time is the mean of a call on the slowest rank. `algbw` is the buffer's bytes over the time, `busbw` that times what
each rank must send of them: 2 (n - 1) / n for an all-reduce, (n - 1) / n for the others, in 1e9 bytes a second. Every
result is checked. *Windows* are the memory that megadp's own gradients and parameters lie in, which each rank of a node
can read; *user memory* is an array of the caller's, as Open MPI and Gloo have, so **that is the like-for-like column**.
Open MPI is as it comes, on shared memory; Gloo is PyTorch's, over the loopback, as in DDP on CPUs. Neither is tuned. Gloo
has threads of its own for sockets and for work, which share the cores with the ranks. megadp averages, the others sum;
megadp adds in one fixed order whatever the timing."""

SMALL = """Each call by itself, on rank 0: the median of 3000 ([`compare_small.sh`](../benchmarks/compare_small.sh)).
Open MPI spins, or yields with `mpi_yield_when_idle`; with more ranks than cores it is not asked to spin."""

BARE = """The same arithmetic as plain loops over everyone's windows, between two barriers that spin: nothing is checked, nobody
can die, nobody sleeps. A ratio below 1 is what megadp adds to that."""

ADAMW = """One process updates {numel} elements ({million:.0f} M): f32 gradients, parameters and moments, and a
parameter in bf16 written too, as mixed precision needs it. megadp's update writes it in the same pass. The fused AdamW
of PyTorch does not, nor does this version's DeepSpeedCPUAdam, so their copy to bf16 follows as a pass of its own;
*without* is their time before it, which is less work than megadp does. Each turn is a process of its own and {rounds}
steps after 3 that are not counted."""

TRAINING = """PyTorch trains an MLP of 28 M parameters (6 × [768 → 3072 → 768], f32, AdamW) on {ranks} ranks with one
thread each, {batch} rows a rank ([`torch_step.py`](../benchmarks/peers/torch_step.py)). Every contender has processes
of its own; a run is {steps} steps after 4 that are not counted, and its figure the median step of its slowest rank.
*Apart* is as many ranks at once that say nothing to each other, each with all of AdamW: what is left when communication
costs nothing and nothing is shared out. (megadp, ZeRO and FSDP2 can be faster than that: each of their ranks updates a
share.) *Alone* is one such rank with the machine to itself."""


def number(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def spread(turns):
    median = number(statistics.median(turns))
    return median if len(turns) < 2 else f"{median} ({number(min(turns))} to {number(max(turns))})"


def ratio(theirs, ours):
    value = statistics.median(theirs) / statistics.median(ours)
    shown = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"**{shown}**" if value < 1 else shown


def table(head, rows):
    if not rows:
        return []
    return ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1), *("| " + " | ".join(row) + " |" for row in rows), ""]


def folded(summary, lines):
    return ["<details>", f"<summary>{summary}</summary>", "", *lines, "</details>", ""]


def about_machine(machine):
    extras = [f"{machine['cores']} cores" + (" of a virtual machine" if machine["virtual"] else ""), machine["caches"],
              f"{machine['memory_gib']} GiB of memory" if machine["memory_gib"] else "", machine["system"], f"Linux {machine['kernel']}",
              f"transparent huge pages: {machine['huge_pages']}" if machine["huge_pages"] else ""]
    return "; ".join(filter(None, [machine["processor"], *extras])) + "."


def in_words(versions):
    return ", ".join(f"{name} {value}" for name, value in versions.items()) + "."


def top(results):
    """Machine and versions once, where all sections have the same."""
    abouts = [section["about"] for section in results.values()]
    lines = ["## What it was measured on", "", about_machine(abouts[0]["machine"]), "", in_words(abouts[0]["versions"]), ""]
    if any(about["quick"] for about in abouts):
        quick = ", ".join(name for name, section in results.items() if section["about"]["quick"])
        lines += [f"**Measured by a quick trial (`--quick`), with small sizes and a single turn: {quick}. These figures say that all "
                  "works, and nothing about speed.**", ""]
    return lines


def footer(about, first):
    """When, how and without whom a section was measured; machine and versions where they are not the page's."""
    lines = [f"Measured on {about['date']} in {about['seconds']} s; programs running before: {about['load_before']}."]
    if about["machine"] != first["machine"]:
        lines.append(f"On another machine than the first section: {about_machine(about['machine'])}")
    if about["versions"] != first["versions"]:
        lines.append(f"With {in_words(about['versions'])}")
    for who, why in about["left_out"]:
        lines.append(f"Left out: {who} ({why}).")
    commands = ["```sh", *about["commands"], "```", ""]
    return [" ".join(lines), "", *folded("Commands", commands)]


def slower_at(ours, theirs):
    """Runs of neighbouring sizes at which ours takes longer, as words."""
    runs, open_run = [], None
    for size in sorted(set(ours) & set(theirs)):
        value = statistics.median(theirs[size]) / statistics.median(ours[size])
        if value >= 1 - CLOSE:
            open_run = None
        elif open_run:
            open_run[1], open_run[2] = size, min(open_run[2], value)
        else:
            open_run = [size, size, value]
            runs.append(open_run)
    words = plots.bytes_in_words
    return ", ".join((words(first) if first == last else f"{words(first)} to {words(last)}") + f" (ratio down to {value:.2f})"
                     for first, last, value in runs)


def series(sweeps, op, ranks):
    return {row["contender"]: dict(zip(row["bytes"], row["us"])) for row in sweeps if row["op"] == op and row["ranks"] == ranks}


def verdicts(sweeps):
    rows = []
    for op, ranks in dict.fromkeys((row["op"], row["ranks"]) for row in sweeps):
        of = series(sweeps, op, ranks)
        for ours in OURS:
            cells = [slower_at(of[ours], of[peer]) or "nowhere" if ours in of and peer in of else "not measured" for peer in PEERS]
            rows.append([f"{op}, {ranks} ranks, {ours.split(', ')[1]}", *cells])
    return ["Where megadp is slower (by more than 3 %), by the size of the buffer:", "",
            *table(["", *(f"than {peer}" for peer in PEERS)], rows)]


def times_table(of, sizes):
    pairs = [(peer, ours) for peer, ours in RATIOS if peer in of and ours in of]
    rows = []
    for size in sizes:
        row = [plots.bytes_in_words(size), *(spread(turns[size]) if size in turns else "" for turns in of.values())]
        row += [ratio(of[peer][size], of[ours][size]) if size in of[peer] and size in of[ours] else "" for peer, ours in pairs]
        rows.append(row)
    return table(["µs", *of, *(f"{peer} / {ours.split(', ')[1]}" for peer, ours in pairs)], rows)


def bandwidths_table(of, sizes, share):
    def cell(turns, size):
        if size not in turns:
            return ""
        algorithm = size / statistics.median(turns[size]) / 1e3
        return f"{number(algorithm)} / {number(algorithm * share)}"
    large = [size for size in sizes if size >= LEAST_BANDWIDTH]
    return table(["algbw / busbw", *of], [[plots.bytes_in_words(size), *(cell(turns, size) for turns in of.values())] for size in large])


def small_table(small):
    names = {"megadp": "megadp", "openmpi-0": "Open MPI, spinning", "openmpi-1": "Open MPI, yielding"}
    lines = []
    for ranks in dict.fromkeys(row["ranks"] for row in small):
        of = {names[name]: {row["bytes"]: row["us"] for row in small if row["ranks"] == ranks and row["contender"] == name}
              for name in names if any(row["contender"] == name and row["ranks"] == ranks for row in small)}
        if "megadp" not in of:
            continue
        rows = [[plots.bytes_in_words(size), *(spread(turns[size]) for turns in of.values()),
                 *(ratio(of[peer][size], of["megadp"][size]) for peer in of if peer != "megadp")] for size in sorted(of["megadp"])]
        lines += table([f"µs, {ranks} ranks", *of, *(f"{peer} / megadp" for peer in of if peer != "megadp")], rows)
    return lines


def bare_table(bare):
    rows = [[f"{row['op']}, {plots.bytes_in_words(row['bytes'])}", spread(row["us"]), spread(row["bare_us"]), spread(row["memcpy_us"]),
             ratio(row["bare_us"], row["us"])] for row in bare]
    return table(["µs, 2 ranks", "megadp, windows", "bare loops", "memcpy of the buffer", "bare loops / megadp"], rows)


def collectives(section, first):
    lines = ["## Collectives on one node", "", COLLECTIVES, ""]
    cores = section["about"]["machine"]["cores"]
    crowded = sorted({row["ranks"] for row in section["sweep"] if row["ranks"] > cores})
    if crowded:
        lines += [f"With {', '.join(map(str, crowded))} ranks there are more ranks than the machine's {cores} cores: what the times show "
                  "is also how ranks wait for one that has no core.", ""]
    lines += verdicts(section["sweep"])
    for op, ranks in dict.fromkeys((row["op"], row["ranks"]) for row in section["sweep"]):
        of = series(section["sweep"], op, ranks)
        there = {size for turns in of.values() for size in turns}
        sizes = [size for size in SHOWN if size in there]
        plot = f"![{op} over {ranks} ranks: time against size](performance/{plots.name_of(op, ranks)})"
        lines += [f"### {op}, {ranks} ranks", "", plot, "", *times_table(of, sizes),
                  *folded("Bandwidths", bandwidths_table(of, sizes, LEAST_SHARE[op] * (ranks - 1) / ranks))]
    if section["small"]:
        lines += ["### Small all-reduces", "", SMALL, "", *small_table(section["small"])]
    if section["bare"]:
        lines += ["### Beside bare loops", "", BARE, "", *bare_table(section["bare"])]
    return lines + footer(section["about"], first)


def adamw(section, first):
    rows, by_threads = section["rows"], {}
    for row in rows:
        by_threads.setdefault(row["threads"], {})[row["contender"]] = row
    names = {"megadp": "megadp, bf16 written too", "torch": "PyTorch, fused", "deepspeed": "DeepSpeedCPUAdam"}
    cells, shares = [], []
    for threads, of in by_threads.items():
        ours = of["megadp"]["with_bf16_ms"] if "megadp" in of else None
        for name, row in of.items():
            if name == "megadp":
                cells.append([names[name], str(threads), spread(ours), ""])
                shares.append(f"{row['of_copy']:.2f} with {threads} thread{'s' if threads > 1 else ''}")
                continue
            for what, key in (("with the copy to bf16", "with_bf16_ms"), ("without", "step_ms")):
                cells.append([f"{names[name]}, {what}", str(threads), spread(row[key]), ratio(row[key], ours) if ours else ""])
    beside = f"megadp moves its bytes at this share of the speed of a copy in the same process: {', '.join(shares)}." if shares else ""
    sizes, numel = section["about"]["sizes"], rows[0]["numel"] if rows else 0
    text = ADAMW.format(numel=f"2^{numel.bit_length() - 1}" if numel else "", million=numel / 1e6, rounds=sizes["adamw_rounds"])
    return ["## AdamW", "", text, "", *table(["", "threads", "ms", "over megadp"], cells), beside, "", *footer(section["about"], first)]


def training(section, first):
    of = {row["contender"]: row for row in section["rows"]}
    base = [name for name in of if not name.startswith("megadp")]
    ours = [name for name in of if name.startswith("megadp")]
    rows = []
    for name in [*base, *ours]:
        row = of[name]
        apart = f"{row['loss_difference']:.2g}" if "loss_difference" in row else "has rows of its own"
        ratios = [ratio(row["runs_ms"], of[our]["runs_ms"]) if our != name else "" for our in ours]
        rows.append([name, str(row["ranks"]), spread(row["runs_ms"]), *ratios, f"{row['last_loss']:.6f}", apart])
    sizes = section["about"]["sizes"]
    ranks = max((row["ranks"] for row in section["rows"]), default=2)
    lines = ["## A training step", "", TRAINING.format(ranks=ranks, batch=sizes["batch"], steps=sizes["steps"]), "",
             *table(["", "ranks", "ms a step", *(f"over {our}" for our in ours), "last loss", "losses from DDP's"], rows)]
    if "alone" in of and "apart" in of:
        slowed = statistics.median(of["apart"]["runs_ms"]) / statistics.median(of["alone"]["runs_ms"])
        lines += [f"Ranks side by side slow each other down before a byte is sent: apart takes {slowed:.2f} times as long as alone.", ""]
    return lines + footer(section["about"], first)


PARTS = {"collectives": collectives, "adamw": adamw, "training": training}


def markdown(results, bytes_by_hand):
    first = next(iter(results.values()))["about"]
    note = "<!-- Written by benchmarks/peers/run; what is changed here is lost. The section on bytes is docs/performance/bytes.md. -->"
    lines = [note, HEAD, "", *top(results)]
    for name, part in PARTS.items():
        if name in results:
            lines += part(results[name], first)
    if bytes_by_hand:
        lines += [bytes_by_hand, ""]
    return "\n".join([*lines, AGAIN]) + "\n"
