# SPDX-License-Identifier: Apache-2.0
"""What launchers and schedulers leave in the environment. Tests that start programs drop it: where the suite itself is run below one of
them, a program would take its variables for a job of its own."""

import os

PREFIXES = ("MEGADP_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "HYDI", "HYDRA_", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
            "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT")
NAMES = ("RANK", "WORLD_SIZE")


def without_launcher():
    """A copy of this process's environment, as outside of any job. What carries data between hosts is no launcher's to say, and stays."""
    return {name: value for name, value in os.environ.items()
            if name == "MEGADP_TRANSPORT" or not name.startswith(PREFIXES) and name not in NAMES}
