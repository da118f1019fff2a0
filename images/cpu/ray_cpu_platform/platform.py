"""The CPU platform of vLLM 0.32 with the answers that Ray on several hosts needs."""

import torch  # type: ignore[import-not-found]
from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]


class RayCpuPlatform(CpuPlatform):  # type: ignore[misc]
    """CPU workers, counted by Ray as GPUs, that talk to other hosts over the network."""

    # A resource of our own making would not do: vLLM asks Ray for accelerator ids by this name
    # (RayWorkerProc.get_node_and_physical_gpu_ids), and Ray knows ids for GPUs only.
    ray_device_key = "GPU"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """Return the number formats, the one for a float32 checkpoint and `--dtype auto` first.

        vLLM would narrow such a checkpoint to bfloat16, where the order in which ranks add up
        their parts can change which token wins.
        """
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the communicator that keeps shared memory to ranks on one host."""
        return "ray_cpu_platform.communicator.CrossHostCpuCommunicator"
