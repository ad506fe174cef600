# SPDX-License-Identifier: Apache-2.0
"""What megadp.h declares, and the headers that it includes, with its types, for the programs that write the raw layer of a binding. A
declaration of a form that is not known here is an error, so that nothing is left out."""
import os
import re
import sys
from dataclasses import dataclass, field

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "cmake"))

import abi_table  # noqa: E402
from abi_table import HeaderError  # noqa: E402


@dataclass(frozen=True)
class Type:
    """`base` is a C name without qualifiers ("int32_t", "char", "mdp_tensor", "void"); `pointers` counts the stars; `const` says that what
    the first star points to is not written, `const_outer` what the last one does, if there are several; `length` is an array's, 0 where
    there is none."""
    base: str
    pointers: int = 0
    const: bool = False
    length: int = 0
    const_outer: bool = False


@dataclass(frozen=True)
class Variable:  # a field or a parameter
    name: str
    type: Type


@dataclass(frozen=True)
class Function:
    name: str
    result: Type
    params: tuple


@dataclass
class Header:
    handles: list = field(default_factory=list)    # opaque structs
    aliases: dict = field(default_factory=dict)    # typedef name -> Type, as mdp_status -> int32_t
    enums: list = field(default_factory=list)      # (typedef name or None, [(enumerator, value)])
    structs: dict = field(default_factory=dict)    # name -> (Variable, ...)
    callbacks: dict = field(default_factory=dict)  # typedef name -> Function
    functions: list = field(default_factory=list)
    parts: dict = field(default_factory=dict)      # file name -> Header of what stands in that file alone


TYPE = re.compile(r"(const )?(?:struct )?(\w+)((?: ?\*)*)( const ?\*)?$")


def read_type(text, length=0):
    match = TYPE.fullmatch(text.strip())
    if not match:
        raise HeaderError(f"a type of unknown form: {text!r}")
    return Type(match[2], match[3].count("*") + bool(match[4]), bool(match[1]), length, bool(match[4]))


def read_variable(text):
    match = re.fullmatch(r"(.*?[\s*])(\w+)(?:\[(\d+)\])?", text.strip())
    if not match:
        raise HeaderError(f"a variable of unknown form: {text!r}")
    return Variable(match[2], read_type(match[1], int(match[3] or 0)))


def read_fields(body):
    fields = []
    for line in filter(None, (part.strip() for part in body.split(";"))):
        first, *others = line.split(",")
        fields.append(read_variable(first))
        fields += [Variable(other.strip(), fields[-1].type) for other in others]
    return tuple(fields)


def read_function(result, name, params):
    listed = [] if params.strip() in ("", "void") else params.split(",")
    return Function(name, read_type(result), tuple(read_variable(param) for param in listed))


def read_enumerators(body):
    found = []
    for item in filter(None, (part.strip() for part in body.split(","))):
        match = re.fullmatch(r"(MDP_\w+) = (-?(?:0x[0-9A-Fa-f]+|\d+))", item)
        if not match:
            raise HeaderError(f"an enumerator of unknown form: {item!r}")
        found.append((match[1], int(match[2], 0)))
    return found


def add(header, statement, last_alias):
    """Takes one declaration in; returns the alias that an enumeration right after it gives values to."""
    if match := re.fullmatch(r"typedef struct \{(.*)\} (\w+)", statement):
        header.structs[match[2]] = read_fields(match[1])
    elif match := re.fullmatch(r"enum \{(.*)\}", statement):
        header.enums.append((last_alias, read_enumerators(match[1])))
    elif match := re.fullmatch(r"MDP_API ([\w\s*]*?[\s*])(mdp_\w+)\((.*)\)", statement):
        header.functions.append(read_function(match[1], match[2], match[3]))
    elif match := re.fullmatch(r"typedef ([\w\s*]+)\(\*(\w+)\)\((.*)\)", statement):
        header.callbacks[match[2]] = read_function(match[1], match[2], match[3])
    elif match := re.fullmatch(r"(?:typedef )?struct (\w+)(?: \1)?", statement):
        header.handles.append(match[1])
    elif match := re.fullmatch(r"typedef ([\w\s]+?\*?) ?(mdp_\w+)", statement):
        header.aliases[match[2]] = read_type(match[1])
        return match[2]
    else:
        raise HeaderError(f"a declaration of unknown form: {statement[:120]!r}")
    return None


def read_header(path=os.path.join(ROOT, "include", "megadp.h")):
    header, alias = Header(), None
    for name, statement in abi_table.declarations(path):
        add(header.parts.setdefault(name, Header()), statement, alias)
        alias = add(header, statement, alias)
    return header
