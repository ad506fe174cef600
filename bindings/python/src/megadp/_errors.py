# SPDX-License-Identifier: Apache-2.0
"""What a failed call becomes: MegaDPError, with the status and what the failure is about."""
import enum
from typing import Any, Optional

from . import _raw


class Status(enum.IntEnum):
    """The status codes of megadp.h; docs/errors.md says what each means and what to do."""

    OK = _raw.MDP_OK
    PENDING = _raw.MDP_PENDING
    INVALID = _raw.MDP_E_INVALID
    STATE = _raw.MDP_E_STATE
    UNSUPPORTED = _raw.MDP_E_UNSUPPORTED
    MEMORY = _raw.MDP_E_MEMORY
    SYSTEM = _raw.MDP_E_SYSTEM
    BACKEND = _raw.MDP_E_BACKEND
    PEER = _raw.MDP_E_PEER
    TIMEOUT = _raw.MDP_E_TIMEOUT
    DESYNC = _raw.MDP_E_DESYNC
    ABORTED = _raw.MDP_E_ABORTED
    NUMERIC = _raw.MDP_E_NUMERIC
    CORRUPT = _raw.MDP_E_CORRUPT
    INTERNAL = _raw.MDP_E_INTERNAL


class MegaDPError(RuntimeError):
    """A call of the library failed.

    code: a Status (an int where the library is newer than this package). text: the sentence that explains it. rank: the rank to blame, in
    the world. bucket: its number in launch order. param: the parameter's index at registration. operation: the collective's running
    number in its group. Each of the last four is None where it is not known or not what the failure is about.
    """

    def __init__(self, code: int, text: str, rank: Optional[int] = None, bucket: Optional[int] = None, param: Optional[int] = None,
                 operation: Optional[int] = None) -> None:
        super().__init__(code, text, rank, bucket, param, operation)
        self.code = Status(code) if code in Status._value2member_map_ else code
        self.text = text
        self.rank = rank
        self.bucket = bucket
        self.param = param
        self.operation = operation

    def __str__(self) -> str:
        return f"{getattr(self.code, 'name', self.code)}: {self.text}"


class InvalidError(MegaDPError, ValueError):
    """An argument is wrong (Status.INVALID). Also a ValueError, as Python's own functions raise."""


def make_error(code: int, text: str, **about: Any) -> MegaDPError:
    return (InvalidError if code == Status.INVALID else MegaDPError)(code, text, **about)


def invalid(text: str) -> InvalidError:
    return InvalidError(Status.INVALID, text)


def from_info(info: "_raw.mdp_error_info", text: Optional[str] = None) -> MegaDPError:
    """The exception that an mdp_error_info describes; `text` where the whole sentence is at hand."""
    def known(value: int) -> Optional[int]:
        return None if value < 0 else value

    if text is None:
        text = info.text.decode("utf-8", "replace")
    return make_error(info.status, text, rank=known(info.rank), bucket=known(info.bucket), param=known(info.param),
                      operation=info.operation or None)
