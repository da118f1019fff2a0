"""Two ranks ask the plugin whether they may share memory; the second one's host name is given.

``python same_host.py NAME``, inside the tree. Prints what each rank was told, a line a rank.
"""

from __future__ import annotations

import os
import subprocess
import sys

RANKS = 2


def ask(rank: int) -> None:
    """Join the group as `rank` and print the answer."""
    import torch.distributed as dist  # type: ignore[import-not-found]  # noqa: PLC0415
    from ray_cpu_platform.communicator import (  # type: ignore[import-not-found]  # noqa: PLC0415
        CrossHostCpuCommunicator,
    )

    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29511", rank=rank,
                            world_size=RANKS)  # fmt: skip
    # What vLLM's own constructor sets before it asks; the rest of it wants a whole engine.
    communicator = object.__new__(CrossHostCpuCommunicator)
    communicator.world_size, communicator.device_group = RANKS, dist.group.WORLD
    print(rank, communicator._all_group_ranks_share_shm_group_name(), flush=True)


def main(name: str) -> None:
    """Start both ranks, each in a host name of its own."""
    names = ("first", name)
    started = [
        subprocess.Popen(
            ["unshare", "--uts", "sh", "-c", f'hostname {names[rank]} && exec "$@"', "sh",
             sys.executable, __file__, "--rank", str(rank)],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    sys.exit(max(process.wait() for process in started))


if __name__ == "__main__":
    ask(int(sys.argv[2])) if sys.argv[1] == "--rank" else main(sys.argv[1])
