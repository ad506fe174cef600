#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what scripts/test did as a table: stages, tests, the cases inside them, failures, and what was skipped for which reason.

usage: test_summary.py RESULTS      (stages.tsv: name, exit status, seconds; NAME.xml: what ctest wrote, for stages that ran tests)
"""
import os
import re
import sys
import xml.etree.ElementTree

# How the suites say how many cases one program held: cmocka, RapidCheck, and our own.
CASES = (r"\[==========\] (?:\S+: )?(\d+) test\(s\) run\.", r"OK, passed \d+ tests()",
         r"^(\d+) (?:cases?|checks?|tests?|properties|vectors)\b")


def cases(output):
    """How many cases a test's output reports; at least the test itself."""
    found = sum(int(match or 1) for pattern in CASES for match in re.findall(pattern, output, re.M))
    return max(found, 1)


def read_suite(path):
    """(passed, cases, [failed names], [(skipped name, reason)]) of one of ctest's files."""
    passed, inside, failed, skipped = 0, 0, [], []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        output = case.findtext("system-out") or ""
        if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            lines = [line for line in output.splitlines() if line.strip()]
            skipped.append((case.get("name"), lines[-1].strip() if lines else case.get("status")))
        elif case.get("status") == "fail" or case.find("failure") is not None:
            failed.append(case.get("name"))
        else:
            passed += 1
            inside += cases(output)
    return passed, inside, failed, skipped


def main(results):
    print(f"{'stage':<14}{'seconds':>9}{'tests':>8}{'cases':>8}{'failed':>8}{'skipped':>9}")
    stages, all_failed, all_skipped = 0, [], []
    with open(os.path.join(results, "stages.tsv"), encoding="utf-8") as file:
        for name, status, seconds in (line.rstrip("\n").split("\t") for line in file):
            stages += 1
            row = f"{name:<14}{seconds:>9}"
            path = os.path.join(results, name + ".xml")
            failed = []
            if os.path.exists(path):
                passed, inside, failed, skipped = read_suite(path)
                all_skipped += [(f"{name}: {test}", reason) for test, reason in skipped]
                row += f"{passed + len(failed):>8}{inside:>8}{len(failed):>8}{len(skipped):>9}"
            if int(status) and not failed:
                failed = ["did not finish"]
            all_failed += [f"{name}: {test}" for test in failed]
            print(row + ("   FAILED" if failed else ""))
    for test, reason in all_skipped:
        print(f"skipped  {test}: {reason}")
    for test in all_failed:
        print(f"FAILED   {test}")
    print("all passed" if stages and not all_failed else f"{len(all_failed)} failed")
    return 0 if stages and not all_failed else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
