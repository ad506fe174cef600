# SPDX-License-Identifier: Apache-2.0
"""What checkpoints of torch's and of JAX's programs have in common: Python values as JSON text, and ranks that read the same checkpoint.

Nothing is pickled: what JSON has no word for (tuples, keys that are no strings) is written as {"!": its type, "items": [...]}.
"""
import collections
import json
import random
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ._checkpoint import checkpoint_data, checkpoint_info
from ._comm import Comm
from ._errors import MegaDPError, Status, invalid, make_error

VERSION = 1
_PLAIN = (bool, int, float, str)


def pack(value: Any, what: str) -> Any:
    """The value in JSON's types, from which unpack makes an equal one. Raises MegaDPError: INVALID, which names the place."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, float):  # numpy's
        return float(value)
    if type(value) is list:
        return [pack(item, f"{what}[{number}]") for number, item in enumerate(value)]
    if type(value) is dict and "!" not in value and all(type(key) is str for key in value):
        return {key: pack(item, f"{what}[{key!r}]") for key, item in value.items()}
    if type(value) is tuple:
        return {"!": "tuple", "items": [pack(item, f"{what}[{number}]") for number, item in enumerate(value)]}
    if type(value) in (dict, collections.Counter):
        pairs = [[pack(key, f"a key of {what}"), pack(item, f"{what}[{key!r}]")] for key, item in value.items()]
        return {"!": type(value).__name__, "items": pairs}
    raise invalid(f"{what} is a {type(value).__name__}, which a checkpoint's text cannot hold: it may be None, a bool, a number, a string, "
                  "and lists, tuples and dicts of these")


def unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "!" not in value:
        return {key: unpack(item) for key, item in value.items()}
    items = unpack(value["items"])
    if value["!"] == "tuple":
        return tuple(items)
    pairs = {key: item for key, item in items}
    return collections.Counter(pairs) if value["!"] == "Counter" else pairs


def to_bytes(about: Dict[str, Any]) -> bytes:
    return json.dumps(about).encode()


class Together(NamedTuple):
    """The ranks that save together: data-parallel and tensor-parallel ones."""

    comm: Comm  # of all of them
    tp: int     # tensor-parallel ranks

    @property
    def first(self) -> bool:
        return self.comm.rank == 0


def together(home: Any, call: str) -> Together:
    """Those of a DataParallel, home, which keeps what is found. Collective the first time."""
    if home._together is None:
        where, data = home._where, home._comm
        if isinstance(where, Comm):
            home._together = Together(where, 1)
        else:
            tp = where.coords("tp")[1]
            if data.size * tp != where._size:
                raise MegaDPError(Status.UNSUPPORTED, f"{call} is for data- and tensor-parallel ranks, and on this grid they are "
                                  f"{data.size * tp} of {where._size}: megadp.save_checkpoint and megadp.load_checkpoint save "
                                  "pipeline parallel parts too")
            home._together = Together(data if tp == 1 else where.comm("tp-dp-cp"), tp)
    found: Together = home._together
    return found


def wait_for_last(home: Any) -> None:
    """What is found in the directory is then what was saved last. home._saving holds its Request, so the library takes a failure of it for
    known: it is told here unless the script has heard of it."""
    saving, home._saving = home._saving, None
    if saving is not None and not saving._failed:
        saving.wait()


def random_state() -> Any:
    """Of Python's own generator."""
    return pack(random.getstate(), "random.getstate()")


def set_random_state(state: Any) -> None:
    random.setstate(unpack(state))


def find_checkpoint(comm: Comm, directory: Any, kind: str) -> Tuple[str, Dict[str, Any], int]:
    """(path, what was saved by `kind`, by how many ranks) of the newest checkpoint, as rank 0 has found it, so that all ranks read the same
    while another job may save; of a model of whole arrays (safetensors) nothing, by 0 ranks. Collective; blocking. Raises MegaDPError, on
    all ranks: as checkpoint_info, INVALID (something else)."""
    text = bytearray(to_bytes(_find(directory, kind)) if comm.rank == 0 else b"")
    length = bytearray(len(text).to_bytes(8, "little"))
    comm.broadcast(length)
    if comm.rank != 0:
        text = bytearray(int.from_bytes(length, "little"))
    comm.broadcast(text)
    found = json.loads(text)
    if "error" in found:
        raise make_error(*found["error"])
    return found["path"], found["saved"], found["ranks"]


def _find(directory: Any, kind: str) -> Dict[str, Any]:
    try:
        info = checkpoint_info(directory)
        if info["format"] == "safetensors":
            return {"path": info["path"], "saved": {}, "ranks": 0}
        saved = _parsed(checkpoint_data(info["path"]))
    except MegaDPError as error:
        return {"error": [int(error.code), error.text]}
    version = saved.get(kind, 0)
    if version > VERSION:
        return {"error": [int(Status.UNSUPPORTED), f"{info['path']} is of version {version} of {kind}'s; this one reads up to {VERSION}"]}
    if not version:
        return {"error": [int(Status.INVALID), f"{info['path']} was not saved by {kind}.save_checkpoint; megadp.load_checkpoint loads what "
                          "megadp.save_checkpoint has saved"]}
    return {"path": info["path"], "saved": saved, "ranks": len(info["files"])}


def _parsed(text: bytes) -> Dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # somebody else's bytes
        return {}
    return found if isinstance(found, dict) else {}


def of_rank(comm: Comm, path: str, rank: int) -> Dict[str, Any]:
    """What this rank has saved of its own. Collective; blocking. Raises MegaDPError, on all ranks: SYSTEM, CORRUPT."""
    failure: Optional[MegaDPError] = None
    found: Dict[str, Any] = {}
    try:
        found = _parsed(checkpoint_data(path, rank))
    except MegaDPError as error:
        failure = error
    failed = bytearray([failure is not None])
    comm.all_reduce(failed, op="max")
    if failure is not None:
        raise failure
    if failed[0]:
        raise MegaDPError(Status.SYSTEM, f"another rank cannot read its data in {path}, and says why")
    return found
