# SPDX-License-Identifier: Apache-2.0
"""python -m megadp.info prints what the library is and what it sees, as JSON."""
import json
import sys
import types
from typing import Any, Dict

from ._library import info


class _Module(types.ModuleType):
    """megadp.info is a function until somebody imports this module of the same name; then it can still be called."""

    def __call__(self) -> Dict[str, Any]:
        return info()


if __name__ == "__main__":
    json.dump(info(), sys.stdout, indent=2)
    sys.stdout.write("\n")
else:
    sys.modules[__name__].__class__ = _Module
