# SPDX-License-Identifier: Apache-2.0
"""torch.compile and the library's calls: what surrounds a call is compiled, and the call itself is made as it stands."""
from typing import Any, Callable, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

# A function that compiled code calls and does not look into: Dynamo would take autograd.Function apart, and end at what ctypes does. This imports
# Dynamo, for a second or two, as the first optimizer of torch's, or of ours, does too.
eager = cast(Callable[[Function], Function], torch.compiler.disable)
