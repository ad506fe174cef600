# SPDX-License-Identifier: Apache-2.0
"""The two pages that a run of gpu_check leaves: JSON for programs, Markdown for people; the same content."""
import datetime
import json
import os
import re


def words(value):
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(words(part) for part in value)
    return str(value).replace("|", "\\|").replace("\n", " ")


def table(rows):
    columns = []
    for row in rows:
        columns += [name for name in row if name not in columns]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(words(row.get(name, "")) for name in columns) + " |")
    return lines


def markdown(report):
    lines = [f"# The CUDA backend on {report['device'] or 'a machine without a device'}, {report['date']}", "", report["verdict"], ""]
    lines += table([{"stage": s["name"], "outcome": s["outcome"], "seconds": s["seconds"], "what was run": s["what"]} for s in report["stages"]])
    for stage in report["stages"]:
        lines += ["", f"## {stage['name']}: {stage['outcome']}", "", stage["what"][0].upper() + stage["what"][1:] + "."]
        if stage["rows"]:
            lines += ["", *table(stage["rows"])]
        for note in stage["notes"]:
            lines += ["", *(["```", note.rstrip().replace("```", "'''"), "```"] if "\n" in note.strip() else [note])]
    return "\n".join(lines) + "\n"


def verdict(stages, device, seconds):
    count = {kind: sum(stage["outcome"] == kind for stage in stages) for kind in ("passed", "failed", "skipped")}
    where = f"on {device}" if device else "without a device: nothing of it has run on a GPU"
    failed = [stage["name"] for stage in stages if stage["outcome"] == "failed"]
    sentence = f"{len(stages)} stages {where}: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped, in {seconds:.0f} s."
    return sentence + (f" Failed: {', '.join(failed)}." if failed else "")


def name_of(device):
    return re.sub(r"[^a-z0-9]+", "-", (device or "no-device").lower()).strip("-")


def today():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def write(folder, device, only, stages, seconds):
    """Writes both pages; returns their common path without the ending, and the verdict. A page of some stages takes no whole one's place."""
    report = {"date": today(), "device": device, "verdict": verdict(stages, device, seconds), "seconds": round(seconds, 1), "stages": stages}
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "-".join([report["date"], name_of(device), *(only[1:] if only else [])]))
    with open(f"{path}.json", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    with open(f"{path}.md", "w", encoding="utf-8") as file:
        file.write(markdown(report))
    return path, report["verdict"]
