#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what scripts/test did as a table: stages, tests, the cases inside them, failures, and what was skipped for which reason: whole
tests, as ctest knows them, and single cases, as the programs say.

usage: test_summary.py RESULTS      (stages.tsv: name, exit status, seconds; NAME.xml: what ctest wrote, for stages that ran tests)
       test_summary.py --self-test
"""
import os
import re
import sys
import tempfile
import xml.etree.ElementTree

# How the suites say how many cases one program held: cmocka, RapidCheck, and our own.
CASES = (r"\[==========\] (?:\S+: )?(\d+) test\(s\) run\.", r"OK, passed \d+ tests()", r"^Ran (\d+) tests? in ",
         r"^(\d+) (?:cases?|checks?|tests?|properties|vectors)\b")

# Of these, unittest and cmocka count the skipped ones among those they ran.
COUNTS_SKIPPED = re.compile(r"^Ran \d+ tests? in |^\[==========\]", re.M)

# How they say that a case was skipped. unittest (verbosity 2) names the case first; its document string and what it prints may follow.
UNITTEST_CASE = re.compile(r"(\w+) \([\w.]+\)(?: \.\.\. |$)")
UNITTEST_SKIP = re.compile(r"skipped (['\"])(.*)\1$")
OTHER_SKIPS = (re.compile(r"\[  SKIPPED \] (\w+)()$"), re.compile(r"skipped (\S+): (.*)$"), re.compile(r"SKIPPED \(([^)]*)\): (.*)$"))


def skipped_cases(output):
    """{name: reason} of the cases that a program left out. cmocka says each twice, and gives no reasons; the test may have said it before."""
    found, current = {}, None
    for line in output.splitlines():
        begun = UNITTEST_CASE.match(line)
        current = begun[1] if begun else current
        skip = UNITTEST_SKIP.search(line)
        if skip and current:
            found[current] = skip[2]
            current = None
        for pattern in OTHER_SKIPS:
            other = pattern.match(line)
            if other:
                found[other[1]] = other[2] or found.get(other[1], "no reason given")
    return found


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
            left_out = skipped_cases(output)
            skipped += [(f"{case.get('name')}: {name}", reason) for name, reason in left_out.items()]
            inside += max(cases(output) - (len(left_out) if COUNTS_SKIPPED.search(output) else 0), 0)
    return passed, inside, failed, skipped


UNITTEST_OUTPUT = """\
test_a (__main__.A.test_a) ... skipped "mpirun isn't installed"
test_b (__main__.A.test_b)
What it is about. ... skipped 'needs root'
test_c (__main__.A.test_c) ... ok
test_d (__main__.A.test_d) ... noise of a program
skipped 'found out late'

Ran 4 tests in 0.1s

OK (skipped=3)
"""
CMOCKA_OUTPUT = """\
[==========] group: Running 3 test(s).
[ RUN      ] one
[  SKIPPED ] one
[       OK ] two
skipped three: no device
[  SKIPPED ] three
[==========] group: 3 test(s) run.
[  SKIPPED ] group: 2 test(s), listed below:
[  SKIPPED ] one
[  SKIPPED ] three
"""
OWN_OUTPUT = "skipped windows.large: no memory\nSKIPPED (1 case): no namespaces\n7 cases, all passed\n"


def self_test():
    """A junit file as ctest writes it, with every way of leaving something out."""
    whole = {"unittest": UNITTEST_OUTPUT, "cmocka": CMOCKA_OUTPUT, "own": OWN_OUTPUT, "plain": "skipped nothing here\n"}
    root = xml.etree.ElementTree.Element("testsuite")
    for name, output in whole.items():
        case = xml.etree.ElementTree.SubElement(root, "testcase", name=name, status="run")
        xml.etree.ElementTree.SubElement(case, "system-out").text = output
    left_out = xml.etree.ElementTree.SubElement(root, "testcase", name="whole", status="notrun")
    xml.etree.ElementTree.SubElement(left_out, "system-out").text = "clang is not installed\n"
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "suite.xml")
        xml.etree.ElementTree.ElementTree(root).write(path)
        got = read_suite(path)
    expected = (4, 1 + 1 + 7 + 1, [], [
        ("unittest: test_a", "mpirun isn't installed"), ("unittest: test_b", "needs root"), ("unittest: test_d", "found out late"),
        ("cmocka: one", "no reason given"), ("cmocka: three", "no device"),
        ("own: windows.large", "no memory"), ("own: 1 case", "no namespaces"),
        ("whole", "clang is not installed")])
    if got != expected:
        sys.exit(f"read {got}\nnot  {expected}")
    print(f"{len(expected[3])} cases, all found")
    return 0


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
    sys.exit(self_test() if sys.argv[1] == "--self-test" else main(sys.argv[1]))
