#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that each source of the library includes the headers of what it names, itself or by its own headers.

A new build compiles a dozen sources at a time, where one could live on another's includes without a word.

usage: own_includes.py ROOT | --self-test
"""
import functools
import re

import include_directions
import tree

# What a source names of the standard library, and the headers any of which gives it.
STANDARD = {
    r"std::vector\b": "vector", r"std::string\b|std::to_string\b": "string", r"std::map\b": "map", r"std::set\b": "set",
    r"std::unordered_map\b": "unordered_map", r"std::deque\b": "deque", r"std::array\b": "array", r"std::span\b": "span",
    r"std::optional\b|std::nullopt\b": "optional", r"std::variant\b|std::visit\b": "variant", r"std::function\b": "functional",
    r"std::(?:unique|shared|weak)_ptr\b|std::make_(?:unique|shared)\b": "memory", r"std::atomic\b|std::memory_order": "atomic",
    r"std::(?:recursive_)?mutex\b|std::(?:lock_guard|unique_lock|scoped_lock|call_once)\b": "mutex",
    r"std::condition_variable\b": "condition_variable", r"std::chrono\b": "chrono",
    r"std::(?:move|forward|exchange|pair|make_pair|swap|in_place)\b": "utility|memory|vector|string|functional|algorithm|optional|mutex|map",
    r"std::(?:sort|stable_sort|find|find_if|any_of|all_of|none_of|copy|copy_n|fill|count_if|remove_if|lower_bound|upper_bound|partition|"
    r"mismatch|transform|clamp|max_element|min_element)\b": "algorithm",
    r"std::(?:accumulate|iota|partial_sum|gcd|lcm)\b": "numeric", r"std::(?:popcount|countr_zero|countl_zero|bit_cast|has_single_bit)\b": "bit",
    r"std::mem(?:cpy|move|set|cmp|chr)\b|std::str(?:len|cmp|error)\b": "cstring", r"std::(?:isfinite|isnan|sqrt|pow|fabs|ldexp|frexp)\b": "cmath",
    r"std::(?:ostringstream|istringstream|stringstream)\b": "sstream", r"std::(?:ofstream|ifstream)\b": "fstream",
    r"std::numeric_limits\b": "limits", r"std::thread\b": "thread",
}
# What a header of ours declares: types, also inside others, and constants and functions of a namespace.
DECLARED = re.compile(r"^ *(?:template\b[^;{]*?>\s*)?(?:struct|class|enum class|enum)\s+(?:alignas\([^)]*\)\s*)?([A-Z]\w+)\b(?!\s*;)|"
                      r"^ *using ([A-Z]\w+)\s*=|"
                      r"^(?:inline |static )?constexpr [^=({]*?\b(k[A-Z]\w+)|"
                      r"^(?!return\b|else\b|using\b|typedef\b|#)[A-Za-z_][\w:<>,*& \[\]]*[ *&>](\w+)\([^;{]*[;{]", re.M)
QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"')


def names_of(text):
    return {next(name for name in found.groups() if name) for found in DECLARED.finditer(tree.without_comments(text)) if any(found.groups())}


# Types and constants, and what is called, but for members and what the source itself declares.
USED = re.compile(r"(?<![\w.>~:])([A-Z]\w+|k[A-Z]\w+|[a-z]\w+(?=\())")
LOCAL = re.compile(r"(?:[\w>&*\]] |[&*])(\w+)(?= =|[,)({;:>])")


def used_names(code):
    return set(USED.findall(code)) - set(LOCAL.findall(code))


def check(root):
    sources = [path for path in tree.sources(root) if path.startswith("src/") and not path.startswith("src/cuda/plugin/")]
    texts = {path: tree.read(root, path) for path in sources}
    headers = {path[len("src/"):]: path for path in sources if path.endswith(".h")}

    @functools.cache
    def words(path):
        return set(re.findall(r"\w+", QUOTED.sub("", tree.without_comments(texts[path]))))

    @functools.cache
    def reach(path):
        """All headers that `path` includes, by itself or by others of ours: names as they are included."""
        found, todo = set(), [path]
        while todo:
            for _, name, _ in tree.includes(texts[todo.pop()]):
                if name not in found:
                    found.add(name)
                    todo += [headers[name]] if name in headers else []
        return found

    where = {}
    for name, path in headers.items():
        for declared in names_of(texts[path]):
            where.setdefault(declared, set()).add(name)
    problems = []
    for path in sources:
        if not path.endswith(".cc"):
            continue
        code = QUOTED.sub('""', tree.without_comments(texts[path]))
        reached = reach(path)
        for pattern, given_by in STANDARD.items():
            if (used := re.search(pattern, code)) and not reached & set(given_by.split("|")):
                problems.append(f"{path}: {used[0]}, but no <{given_by.split('|')[0]}>")
        may = include_directions.LAYERS[path.split("/")[1]] | include_directions.LAYER_EXCEPTIONS.get(path, set())
        told = set().union(*(words(headers[name]) for name in reached if name in headers))  # also what is only announced, or is a member
        for name in sorted(used_names(code) & where.keys() - names_of(texts[path]) - told):
            if places := {place for place in where[name] if place.split("/")[0] in may}:
                problems.append(f"{path}: {name}, but not {' or '.join(sorted(places))}")
    return sources, problems


GOOD = {
    "src/base/a.h": "#include <vector>\nnamespace megadp {\nstruct Shape {\n  struct Part {};\n};\nconstexpr int kMost = 3;\nint count(const Shape& s);\n}\n",
    "src/base/b.h": '#include "base/a.h"\nclass Later;\n',
    "src/base/a.cc": '#include "base/b.h"\nstd::vector<int> all;\nShape s;\nLater* later;\nint n = count(s) + kMost; // std::map, Whole\n',
    "src/base/later.h": "struct Later {};\nint give();\n",
    "src/base/b.cc": "struct Later {};\nint f(Box& b) { return b.give(); }\n",
    "src/core/a.h": "struct Whole {};\n",
    "src/base/c.cc": "int g() { return Whole(); }\n",  # which base cannot mean
}
BAD = {
    "src/base/b.cc": "std::vector<int> all;\n",
    "src/base/c.cc": "#include <vector>\nstd::vector<int> all = std::move(other);\nint* p = std::numeric_limits<int>::max();\n",
}
# What lies beside each of these: a header that is not included.
BESIDE = {"src/base/a.h": GOOD["src/base/a.h"]}
BAD_BESIDE = {"src/core/b.cc": "Shape s;\n", "src/core/c.cc": "int n = kMost;\n", "src/core/d.cc": "int n = count(what);\n"}


def self_test():
    failures = tree.check_rules(check, GOOD, BAD)
    for path, text in BAD_BESIDE.items():
        failures += tree.check_rules(check, {}, {path: text}, BESIDE)
    return list(GOOD) + list(BAD) + list(BAD_BESIDE), failures


if __name__ == "__main__":
    tree.main(__doc__, "own includes", check, self_test)
