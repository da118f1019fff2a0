"""What containers get of the machine: GPUs, RDMA where it is declared, shared memory, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vllm_cluster.plan import Plan, make_plan
from vllm_cluster.spec import load

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"
RDMA = {"devices": ["mlx5_0", "mlx5_1:1"]}


def plan(folder: Path, **sections: Any) -> Plan:
    """The plan of prod.yaml with these sections."""
    whole = yaml.safe_load(PROD.read_text())
    (folder / "prod.yaml").write_text(yaml.safe_dump({**whole, **sections}))
    return make_plan(load(folder / "prod.yaml").description)


def options(made: Plan) -> dict[str, set[str]]:
    """The options of every container of the cluster by its name."""
    return {name: {*container.options} for host in made.hosts.values()
            for name, container in host.containers.items()}  # fmt: skip


@pytest.mark.parametrize("memlock", ["unlimited", "inherit"])
def test_rdma_brings_devices_the_right_to_pin_and_nccls_settings(
    tmp_path: Path, memlock: str
) -> None:
    made = plan(tmp_path, rdma=RDMA, limits={"memlock": memlock})
    assert {*options(made)} == {"ray-head", "ray-worker", "vllm"}
    for words in options(made).values():
        assert {"--device=/dev/infiniband", "--cap-add=IPC_LOCK"} <= words
        assert sum(word == "--ulimit=memlock=-1:-1" for word in words) == 1
        assert "--env-file=/run/vllm-cluster/rdma.env" in words
    assert made.environment["NCCL_IB_DISABLE"] == "0"
    assert made.environment["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1:1"
    assert "NCCL_IB_GID_INDEX" not in made.environment  # it drifts: looked up at every start


def test_without_rdma_nccl_is_told_so(tmp_path: Path) -> None:
    made = plan(tmp_path)
    assert made.environment["NCCL_IB_DISABLE"] == "1"
    for words in options(made).values():
        assert not any("infiniband" in word or "IPC_LOCK" in word for word in words)


def test_gpus_come_by_their_cdi_name(tmp_path: Path) -> None:
    for words in options(plan(tmp_path)).values():
        assert {"--runtime=nvidia", "--env=NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"} <= words
        assert not any(word.startswith("--gpus") for word in words)


def test_the_size_of_shared_memory_is_no_dead_letter(tmp_path: Path) -> None:
    own = options(plan(tmp_path, memory={"shm": "8GiB"}))
    assert f"--shm-size={8 * 2**30}" in own["ray-head"]
    assert "--ipc=container:ray-head" in own["vllm"]  # one /dev/shm for both
    hosts = options(plan(tmp_path, memory={"shm": "8GiB", "ipc": "host"}))
    for words in hosts.values():
        assert "--ipc=host" in words
        assert not any(word.startswith("--shm-size") for word in words)
