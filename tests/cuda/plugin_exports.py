#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The CUDA plugin exports its table and nothing else, needs no library of CUDA's (nor a second libstdc++), and stays mapped.

usage: plugin_exports.py PLUGIN ABI_TESTS_DIR
"""
import sys


def main(plugin, tests):
    sys.path.insert(0, tests)
    import exports as library  # pylint: disable=import-outside-toplevel
    problems = [f"exports {name}" for name in library.exported(plugin) if name != "megadp_cuda_plugin"]
    if "megadp_cuda_plugin" not in library.exported(plugin):
        problems.append("does not export megadp_cuda_plugin")
    needed = [name for name, _ in library.dynamic_section(plugin, "NEEDED")]
    problems += [f"needs {name}" for name in needed if name not in library.SYSTEM_LIBRARIES and not library.LOADER.fullmatch(name)]
    problems += [f"looks for libraries in {path}" for tag in ("RPATH", "RUNPATH") for path, _ in library.dynamic_section(plugin, tag)]
    if not any("NODELETE" in flags for _, flags in library.dynamic_section(plugin, "FLAGS_1")):
        problems.append("may be unloaded; it must be linked with -z nodelete")
    print("\n".join(problems) or f"exports its table, needs {', '.join(needed)}")
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
