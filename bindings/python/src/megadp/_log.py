# SPDX-License-Identifier: Apache-2.0
"""Where the library's messages go: what is no failure of a call, such as a stranger's connection that was refused, or a slow rank."""
import atexit
import ctypes
import logging
import sys
from typing import Optional

from . import _raw
from ._library import lib

_LEVELS = {_raw.MDP_LOG_ERROR: logging.ERROR, _raw.MDP_LOG_WARNING: logging.WARNING, _raw.MDP_LOG_INFO: logging.INFO,
           _raw.MDP_LOG_DEBUG: logging.DEBUG}
_logger: Optional[logging.Logger] = None


def _deliver(_user: int, level: int, text: int, length: int) -> None:
    logger = _logger
    if logger is not None:
        logger.log(_LEVELS.get(level, logging.DEBUG), "%s", ctypes.string_at(text, length).decode("utf-8", "replace"))
    elif level <= _raw.MDP_LOG_WARNING:  # another thread has just gone back to the default
        sys.stderr.write(f"megadp: {ctypes.string_at(text, length).decode('utf-8', 'replace')}\n")


_function = _raw.mdp_log_fn(_deliver)  # one for all loggers: nobody could tell when a function that was set before is not needed any more


def log_to(logger: Optional[logging.Logger]) -> None:
    """Hands the library's messages to `logger`, with their levels; None: errors and warnings go to stderr, the rest is dropped (the
    default). Messages are handed over one at a time, at the end of the next ordinary call of any thread and on that thread; what the
    logger's handlers raise is printed and goes no further. When this returns, the logger set before is not in use. Local; any thread.
    """
    global _logger
    if logger is not None:
        _logger = logger
    lib.mdp_log_set(_function if logger is not None else _raw.mdp_log_fn(0), None)  # waits while another thread hands over
    _logger = logger


atexit.register(log_to, None)  # the interpreter goes before the library does
