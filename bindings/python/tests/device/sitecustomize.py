# SPDX-License-Identifier: Apache-2.0
"""Lets the tests of megadp.torch run on a device as they are. Python imports this file in each of their programs, if MEGADP_TEST_DEVICE is
set: tensors and seeded generators are on that device from then on, and communicators are for it. Ranks that share a device are hosts of
their own to NCCL, which refuses two ranks on one device of one host."""
import os

import torch

import megadp

DEVICE = os.environ["MEGADP_TEST_DEVICE"]


class Generator(torch.Generator):
    def __new__(cls, device=DEVICE):
        return super().__new__(cls, device)


torch.set_default_device(DEVICE)
torch.Generator = Generator
megadp.Comm.__init__.__kwdefaults__["backend"] = "host" if DEVICE == "cpu" else DEVICE
os.environ["NCCL_HOSTID"] = "rank" + os.environ.get("MEGADP_RANK", os.environ.get("RANK", "0"))
