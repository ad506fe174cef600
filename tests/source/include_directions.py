#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes point one way: api -> core -> backend <- {host, cuda}, all of them -> control -> base; api and core -> files -> base.

Also: third-party headers only in the files made for them, the core never names UCX, CUDA or NCCL, megadp.h includes two standard headers
and its own part, megadp_layers.h, which nobody else includes, tests of the public API and the examples see nothing but the public API.

usage: include_directions.py ROOT | --self-test
"""
import re

import tree

# Which folders of src/ a layer may include.
LAYERS = {
    "base": {"base"},
    "files": {"base", "files"},
    "control": {"base", "control"},
    "backend": {"base", "control", "backend"},
    "host": {"base", "control", "backend", "host"},
    "cuda": {"base", "control", "backend", "cuda"},
    "core": {"base", "files", "control", "backend", "core"},
    "api": {"base", "files", "control", "backend", "core", "api"},
}
# The one file that knows the drivers.
LAYER_EXCEPTIONS = {"src/api/backends.cc": {"host", "cuda"}}

# The plugin is a library of its own, beside the layers: all that it may include of src/, and nobody else includes its inside.
PLUGIN = "src/cuda/plugin/"
PLUGIN_MAY = re.compile(r"base/.*|cuda/(plugin|build)\.h|cuda/plugin/.*")

# Third-party headers, and the files made for them.
THIRD_PARTY = {
    "ucp/": r"src/host/ucx_\w+\.(h|cc)",
    "ucs/": None,
    "uct/": None,
    "xxhash.h": r"src/files/checksum\.cc",
    "hwy/": r"src/host/(kernels\w*|simd\w*|vectors)\.(h|cc)",
    "nlohmann/": r"(src/api/info\.cc|src/(api|core|base|files)/\w*json\w*\.(h|cc)|tools/\w+\.(h|cc)|tests/.*)",
    "fmt/": r"(src/\w+/\w*(json|format|log)\w*\.(h|cc)|tools/\w+\.(h|cc)|tests/.*)",
    "CLI/": r"(tools/\w+\.(h|cc)|tests/.*)",
    "cblas.h": r"examples/c/gpt/gemm\.c",
    "rapidcheck": r"tests/(unit|conformance)/.*",
    "cmocka.h": r"tests/capi/.*",
    "mpi.h": r"(tests|benchmarks)/.*",
    "sanitizer/": r"tests/.*",
    "nccl.h": r"src/cuda/plugin/nccl_\w+\.(h|cc)",
    "cublasLt.h": r"tests/cuda/cublaslt_types_check\.cc",
    "cuda.h": r"src/cuda/plugin/.*",
    "cuda_": r"src/cuda/plugin/.*",
}

C_STANDARD = "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic stdbool " \
             "stddef stdint stdio stdlib string tgmath threads time uchar wchar wctype"
SYSTEM = "dirent dlfcn elf endian execinfo fcntl fnmatch ftw getopt glob grp ifaddrs link malloc netdb poll pthread pwd pty sched " \
         "semaphore spawn strings syslog termios ucontext unistd utime wait immintrin x86intrin cpuid"
SYSTEM_FOLDERS = ("arpa/", "asm/", "linux/", "net/", "netinet/", "sys/")

# System headers that base may use after all, by file: the log writer must know of a fork, libraries are loaded by name,
# threads are started without signals.
BASE_EXCEPTIONS = {("src/base/fd.cc", "fcntl.h"), ("src/base/fd.cc", "unistd.h"), ("src/base/log.cc", "pthread.h"), ("src/base/symbol.h", "dlfcn.h"), ("src/base/thread.h", "pthread.h"), ("src/base/thread.h", "signal.h")}

# The public headers, and all that they may include.
PUBLIC = {"include/megadp.h": ("stddef.h", "stdint.h", "megadp_layers.h"), "include/megadp_layers.h": ("megadp.h",)}

# Names the core must not contain, in code or in text.
DEVICE_NAMES = re.compile(r"\b\w*(?:ucx|ucp_|ucs_|cuda|nccl)\w*", re.I)
OPEN_TO_PUBLIC_API_ONLY = ("tests/capi/", "tests/install/", "examples/")


def is_standard(name):
    stem = name[:-2] if name.endswith(".h") else name
    return name.endswith(".h") and stem in C_STANDARD.split() or re.fullmatch(r"[a-z_0-9]+", name) is not None


def is_system(name):
    return name.startswith(SYSTEM_FOLDERS) or name.endswith(".h") and name[:-2] in SYSTEM.split()


def third_party(path, name):
    """A complaint about a third-party header, or None."""
    for prefix, allowed in THIRD_PARTY.items():
        if name.startswith(prefix):
            if allowed is None:
                return f"<{name}> is never to be included"
            return None if re.fullmatch(allowed, path) else f"<{name}> belongs only in files matching {allowed}"
    return f"<{name}> is neither a standard nor a system header, and no file is made for it (see THIRD_PARTY)"


def check_layer(path, name, in_layer):
    """A complaint about a project header included from src/, or None."""
    layer = path.split("/")[1]
    target = name.split("/")[0]
    if name == "megadp.h":
        return None if layer == "api" else "megadp.h is for the api layer; inner layers have their own types"
    if not in_layer:
        return f'"{name}" is not a path from src/'
    if path.startswith(PLUGIN):
        return None if PLUGIN_MAY.fullmatch(name) else f"the CUDA plugin must not include {name}"
    if name.startswith("cuda/plugin/"):
        return f'"{name}" is inside the CUDA plugin; only its table, cuda/plugin.h, may be seen from here'
    if target not in LAYERS[layer] | LAYER_EXCEPTIONS.get(path, set()):
        return f"{layer} must not include {target}"
    return None


def check_include(path, name, angled):
    if name == "megadp.h" and not path.startswith(("src/", "include/")):
        return None
    if path in PUBLIC:
        return None if name in PUBLIC[path] else f"{path} includes only {', '.join(PUBLIC[path])}, not {name}"
    if name == "megadp_layers.h":
        return "megadp.h, which includes megadp_layers.h, is the header to include"
    in_layer = name.split("/")[0] in LAYERS and "/" in name
    if path.startswith(OPEN_TO_PUBLIC_API_ONLY) and in_layer:
        return f'"{name}" is inside the library; only megadp.h may be seen from here'
    if path.startswith("src/base/") and is_system(name) and (path, name) not in BASE_EXCEPTIONS:
        return f"base uses the standard library only, not <{name}>"
    if is_standard(name) or is_system(name):
        return None
    if angled or (not in_layer and any(name.startswith(prefix) for prefix in THIRD_PARTY)):
        return third_party(path, name)
    if path.startswith("src/"):
        return check_layer(path, name, in_layer)
    return None  # a header beside the file, or of the layer a test is for


def check(root):
    problems = []
    files = tree.sources(root)
    for path in files:
        text = tree.read(root, path)
        for line, name, angled in tree.includes(text):
            if complaint := check_include(path, name, angled):
                problems.append(f"{path}:{line}: {complaint}")
        if path.startswith("src/core/"):
            for line, content in enumerate(tree.without_comments(text).splitlines(), 1):
                if match := DEVICE_NAMES.search(content):
                    problems.append(f"{path}:{line}: the core names a device or transport: {match[0]}")
        if path.startswith("src/") and path.split("/")[1] not in LAYERS:
            problems.append(f"{path}:1: src/{path.split('/')[1]} is not a layer")
    return files, problems


# Trees that keep every rule, and files that break one each.
GOOD = {
    "include/megadp.h": '#include <stddef.h>\n#include <stdint.h>\n#include "megadp_layers.h"\n',
    "include/megadp_layers.h": '#include "megadp.h"\n',
    "src/api/a.cc": '#include "core/a.h"\n#include "megadp.h"\n',
    "src/control/net/a.h": '#include "base/a.h"\n#include <poll.h>\n',
    "src/core/a.h": '#include "backend/a.h"\n#include "control/world.h"\n#include <vector>\n// UCX in a comment is no name\n',
    "src/api/backends.cc": '#include "host/a.h"\n',
    "src/host/ucx_library.cc": "#include <ucp/api/ucp.h>\n",
    "src/host/kernels.cc": '#include "backend/a.h"\n#include "hwy/highway.h"\n#include <sys/mman.h>\n',
    "src/cuda/a.cc": '#include "cuda/plugin.h"\n#include "backend/a.h"\n',
    "src/cuda/plugin/a.cu": '#include <cuda_runtime.h>\n#include "base/a.h"\n#include "cuda/plugin/a.h"\n',
    "src/cuda/plugin/nccl_a.h": '#include <nccl.h>\n#include "cuda/plugin.h"\n',
    "src/base/a.h": "#include <cstdint>\n",
    "tests/capi/a.c": "#include <megadp.h>\n#include <cmocka.h>\n",
}
BAD = {
    "include/megadp.h": "#include <stdio.h>\n",
    "include/megadp_layers.h": "#include <stdint.h>\n",
    "src/api/b.cc": '#include "host/a.h"\n',
    "src/core/b.cc": '#include "api/a.h"\n',
    "src/core/c.cc": '#include "host/a.h"\n',
    "src/core/d.cc": "#include <ucp/api/ucp.h>\n",
    "src/core/e.cc": 'const char* x = "nccl";\n',
    "src/core/f.cc": '#include "megadp.h"\n',
    "src/backend/b.cc": '#include "core/a.h"\n',
    "src/control/b.cc": '#include "backend/a.h"\n',
    "src/control/c.cc": '#include "core/a.h"\n',
    "src/backend/e.cc": '#include "api/backends.h"\n',
    "src/backend/c.cc": '#include "host/a.h"\n',
    "src/host/b.cc": '#include "core/a.h"\n',
    "src/host/c.cc": '#include "cuda/a.h"\n',
    "src/backend/d.cc": "#include <ucp/api/ucp.h>\n",
    "src/host/d.cc": "#include <ucp/api/ucp.h>\n",
    "src/host/e.cc": "#include <uct/api/uct.h>\n",
    "src/host/f.cc": '#include "a.h"\n',
    "src/cuda/b.cc": '#include "host/a.h"\n',
    "src/cuda/c.cc": "#include <cuda_runtime.h>\n",
    "src/cuda/d.cc": "#include <cuda.h>\n",
    "src/cuda/e.cc": "#include <nccl.h>\n",
    "src/cuda/f.cc": '#include "cuda/plugin/a.h"\n',
    "src/cuda/plugin/b.cc": "#include <nccl.h>\n",
    "src/cuda/plugin/c.cc": '#include "backend/a.h"\n',
    "src/cuda/plugin/d.cc": '#include "cuda/backend.h"\n',
    "src/base/b.cc": '#include "backend/a.h"\n',
    "src/base/c.cc": "#include <unistd.h>\n",
    "src/base/d.cc": "#include <fmt/format.h>\n",
    "src/api/c.cc": "#include <boost/any.hpp>\n",
    "src/other/b.cc": "int x;\n",
    "tests/capi/b.c": '#include "core/a.h"\n',
    "examples/c/b.c": '#include "base/a.h"\n',
    "tests/capi/c.c": "#include <megadp_layers.h>\n",
    "src/api/d.cc": '#include "megadp_layers.h"\n',
    "examples/c/c.c": "#include <cblas.h>\n",
}


def self_test():
    """Every rule, broken once in a tree of its own, must be reported; a tree that keeps them must not."""
    failures = tree.check_rules(check, GOOD, BAD)
    return list(GOOD) + list(BAD), failures


if __name__ == "__main__":
    tree.main(__doc__, "include directions", check, self_test)
