"""What a container needs of the machine: GPUs, RDMA devices, shared memory."""

from __future__ import annotations

from vllm_cluster.spec.model import Description

# Written at every start of a unit, on a file system that ends with the boot.
RDMA_ENVIRONMENT = "/run/vllm-cluster/rdma.env"


def options(description: Description) -> tuple[str, ...]:
    """Options of `docker run` for the GPUs and the RDMA devices."""
    return (*_gpus(description), *_rdma(description))


def _gpus(description: Description) -> tuple[str, ...]:
    """All GPUs, by their CDI name.

    `--gpus all` lets a hook add the devices behind the back of runc and systemd, which takes
    them away at the next daemon-reload (`Failed to initialize NVML: Unknown Error`,
    https://github.com/NVIDIA/nvidia-container-toolkit/issues/48). The runtime reads CDI names
    from this variable with every Docker from 20.10 on; `--device` does so since Docker 25 only.
    """
    if description.gpu.kind != "nvidia":
        return ()
    return ("--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all")


def _rdma(description: Description) -> tuple[str, ...]:
    """Devices, the right to pin memory, and no limit to it.

    Any of them missing lets NCCL fall back to TCP without a word
    (https://github.com/NVIDIA/nvidia-container-toolkit/issues/2037).
    """
    rdma = description.rdma
    if rdma is None:
        return ()
    limit = () if description.limits.memlock == "unlimited" else ("--ulimit=memlock=-1:-1",)
    resolved = f"--env-file={RDMA_ENVIRONMENT}"
    own = (resolved,) if rdma.gid_index == "auto" else ()
    return ("--device=/dev/infiniband", "--cap-add=IPC_LOCK", *limit, *own)


def shared_memory(description: Description, *, shareable: bool) -> tuple[str, ...]:
    """/dev/shm of the declared size. With the host's own, --shm-size would be a dead letter."""
    if description.memory.ipc == "host":
        return ("--ipc=host",)
    own = ("--ipc=shareable",) if shareable else ()
    return (*own, f"--shm-size={description.memory.shm}")


def joined(description: Description, container: str) -> str:
    """The option that gives a container the shared memory of another."""
    return "--ipc=host" if description.memory.ipc == "host" else f"--ipc=container:{container}"


def nccl(description: Description) -> dict[str, str]:
    """What NCCL reads of RDMA, the same on every host. Said either way, never left to chance.

    The GID index is not here: it drifts while a host runs (NVIDIA/nccl#2157), so it is looked up
    at every start.
    """
    if description.rdma is None:
        return {"NCCL_IB_DISABLE": "1"} if description.gpu.kind == "nvidia" else {}
    # `=` asks for these very names; without it NCCL takes them as prefixes.
    return {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "=" + ",".join(description.rdma.devices)}
