"""The CPU communicator of vLLM 0.32, for groups whose ranks live on several hosts."""

import socket

import torch.distributed as dist  # type: ignore[import-not-found]
from vllm.distributed.device_communicators.cpu_communicator import (  # type: ignore[import-not-found]
    CpuCommunicator,
)


class CrossHostCpuCommunicator(CpuCommunicator):  # type: ignore[misc]
    """Uses shared memory only where every rank of the group is on one host."""

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        """Return True only if all ranks report one host name.

        vLLM compares the name of the shared memory group, which comes from the address of rank 0
        and so is the same on every host under Ray; it would then open memory that only one host
        has ("open shm in SHMManager failed").
        """
        names = [""] * self.world_size
        dist.all_gather_object(names, socket.gethostname(), group=self.device_group)
        return len(set(names)) == 1
