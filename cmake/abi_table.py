#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns megadp.h, with the headers beside it that it includes, into a C program that prints abi.json: sizes, offsets and values as the compiler of this build sees them.

Nothing is listed by hand: every struct, enumeration, typedef and function is found in the headers, and a declaration of a form that is not
known here is an error. So the table cannot fall out of step with them.

    {"version": "0.1.0", "arch": "x86_64",
     "structs": {"mdp_range": {"size": 56, "align": 8, "fields": {"struct_size": 0, ...}}, ...},
     "types": {"mdp_status": 4, ...}, "enums": {"MDP_OK": 0, ...}, "functions": ["mdp_version", ...]}
"""
import argparse
import os
import re
import sys


class HeaderError(Exception):
    pass


def strip(text):
    """Removes comments, preprocessor lines (SWIG's begin with %), the extern "C" bracket and MDP_API's definition."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    text = re.sub(r"\\\n", " ", text)
    # With its closing brace: both stand in #ifdef __cplusplus.
    text = re.sub(r"#ifdef __cplusplus.*?#endif", " ", text, flags=re.S)
    return re.sub(r"^[ \t]*[#%][^\n]*$", " ", text, flags=re.M)


def statements(text):
    """The declarations of a header, each up to its semicolon outside of braces, with white space made single."""
    depth, start = 0, 0
    for i, character in enumerate(text):
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        elif character == ";" and depth == 0:
            yield " ".join(text[start:i].split())
            start = i + 1
    if text[start:].strip():
        raise HeaderError(f"text after the last declaration: {text[start:].strip()[:80]!r}")


def field_names(body):
    """Names of the fields of a struct body; several declarators per line, pointers and arrays are known, bit-fields are not."""
    names = []
    for line in filter(None, (part.strip() for part in body.split(";"))):
        for declarator in line.split(","):
            match = re.fullmatch(r"(?:[A-Za-z_][\w\s*]*?[\s*])?\*?\s*([A-Za-z_]\w*)\s*(?:\[\w+\])*", declarator.strip())
            if not match:
                raise HeaderError(f"a field of unknown form: {line!r}")
            names.append(match.group(1))
    return names


def public_headers(path, found=()):
    """`found`, then the header and those beside it that it includes, each once: megadp.h leads to all that callers see."""
    found = [*found, path]
    with open(path, encoding="utf-8") as file:
        for name in re.findall(r'^#include "(\w+\.h)"', file.read(), re.M):
            if (beside := os.path.join(os.path.dirname(path), name)) not in found:
                found = public_headers(beside, found)
    return found


def declarations(path):
    """(name of the file, declaration) of all that the header and those that it includes declare."""
    for header in public_headers(path):
        with open(header, encoding="utf-8") as file:
            for statement in statements(strip(file.read())):
                yield os.path.basename(header), statement


class Table:
    def __init__(self):
        self.structs = {}  # name -> fields
        self.types = []
        self.enums = []
        self.functions = []

    def add(self, statement):
        if match := re.fullmatch(r"typedef struct(?: \w+)? \{(.*)\} (\w+)", statement):
            self.structs[match.group(2)] = field_names(match.group(1))
        elif match := re.fullmatch(r"(?:typedef )?enum(?: \w+)? \{(.*)\}(?: \w+)?", statement):
            for item in filter(None, (part.strip() for part in match.group(1).split(","))):
                value = re.fullmatch(r"(MDP_\w+) = [^=]+", item)
                if not value:
                    raise HeaderError(f"an enumerator without a written value: {item!r}")
                self.enums.append(value.group(1))
        elif match := re.fullmatch(r"MDP_API [\w\s*]*?\b(mdp_\w+)\(.*\)", statement):
            self.functions.append(match.group(1))
        elif re.fullmatch(r"(?:typedef )?struct \w+(?: \w+)?", statement) or re.fullmatch(r"typedef \w+ \(\*\w+\)\(.*\)", statement):
            pass  # an opaque handle, or a callback
        elif match := re.fullmatch(r"typedef [\w\s]+?\*? ?(\w+)", statement):
            self.types.append(match.group(1))
        else:
            raise HeaderError(f"a declaration of unknown form: {statement[:120]!r}")


def read_header(path):
    table = Table()
    for _, statement in declarations(path):
        table.add(statement)
    if not (table.structs and table.enums and table.functions):
        raise HeaderError("no structs, no enumerators or no functions were found")
    return table


def emit(table, version, arch):
    out = [
        "/* Written by cmake/abi_table.py from megadp.h: prints the table of sizes, offsets and values. */",
        "#include <megadp.h>",
        "#include <stdio.h>",
        "#define ALIGNMENT(type) offsetof(struct { char before; type value; }, value)",
        "int main(void) {",
        f'  printf("{{\\n\\"version\\": \\"{version}\\",\\n\\"arch\\": \\"{arch}\\",\\n\\"structs\\": {{");',
    ]
    comma = ""
    for name, fields in table.structs.items():
        out.append(f'  printf("{comma}\\n  \\"{name}\\": {{\\"size\\": %zu, \\"align\\": %zu, \\"fields\\": {{", '
                   f"sizeof({name}), ALIGNMENT({name}));")
        for i, field in enumerate(fields):
            out.append(f'  printf("{", " if i else ""}\\"{field}\\": %zu", offsetof({name}, {field}));')
        out.append('  printf("}}");')
        comma = ","
    out.append('  printf("\\n},\\n\\"types\\": {");')
    for i, name in enumerate(table.types):
        out.append(f'  printf("{", " if i else ""}\\"{name}\\": %zu", sizeof({name}));')
    out.append('  printf("},\\n\\"enums\\": {");')
    for i, name in enumerate(table.enums):
        out.append(f'  printf("{"," if i else ""}\\n  \\"{name}\\": %lld", (long long){name});')
    out.append('  printf("\\n},\\n\\"functions\\": [");')
    for i, name in enumerate(table.functions):
        out.append(f'  printf("{"," if i else ""}\\n  \\"{name}\\"");')
    out.append('  printf("\\n]\\n}\\n");')
    out += ["  return ferror(stdout) || fflush(stdout) ? 1 : 0;", "}", ""]
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("header")
    parser.add_argument("output")
    parser.add_argument("--version", required=True)
    parser.add_argument("--arch", required=True)
    arguments = parser.parse_args()
    try:
        text = emit(read_header(arguments.header), arguments.version, arguments.arch)
    except HeaderError as error:
        sys.exit(f"{arguments.header}: {error}")
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
