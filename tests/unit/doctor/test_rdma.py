"""RDMA as the description has it: adapters, links, devices in containers, the GID index."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from vllm_cluster.doctor.case import Case
from vllm_cluster.facts.doctor.gpu_model import RdmaPort

ROCE = {0: ("RoCE v1", "eth0"), 1: ("RoCE v2", "eth0"), 3: ("RoCE v2", "eth0")}
PORT = RdmaPort("mlx5_0/ports/1", "ACTIVE", "LinkUp", 100.0, "Ethernet", {}, ROCE)
DEVICES = ("/dev/infiniband/uverbs0",)


def with_rdma(*ports: RdmaPort, devices: tuple[str, ...] = DEVICES, index: str = "3") -> Case:
    """The sound cluster with RDMA described; node-b has these ports and devices."""
    case = sound()
    values = {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "=mlx5_0"}
    plan = replace(case.plan, environment={**case.plan.environment, **values})
    case = replace(case, plan=plan)
    for host in plan.hosts:
        facts = case.facts[host]
        mine = host == "node-b"
        inside = {
            name: replace(found, rdma_devices=devices if mine else DEVICES,
                          environment={**found.environment, **values,
                                       "NCCL_IB_GID_INDEX": index if mine else "3"})
            for name, found in facts.docker.inside.items()
        }  # fmt: skip
        text = facts.contents["/etc/vllm-cluster/cluster.env"]
        text += "".join(f"{name}={value}\n" for name, value in values.items())
        case = changed(
            case, host, rdma=ports if mine else (PORT,),
            docker=replace(facts.docker, inside=inside),
            contents={**facts.contents, "/etc/vllm-cluster/cluster.env": text},
        )  # fmt: skip
    return case


def test_rdma_as_described_is_sound() -> None:
    assert ids(with_rdma(PORT)) == []


def test_an_adapter_that_is_not_there() -> None:
    found = first(with_rdma(replace(PORT, name="mlx5_1/ports/1")))
    assert (found.id, found.host, found.severity) == ("network.rdma-missing", "node-b", "failing")
    assert "there are mlx5_1" in found.found


def test_a_described_port_without_a_link_fails_and_another_is_a_warning() -> None:
    down = replace(PORT, state="DOWN", physical="Polling")
    found = first(with_rdma(down))
    assert (found.id, found.severity) == ("network.rdma-port", "failing")
    found = first(with_rdma(PORT, replace(down, name="mlx5_1/ports/1")))
    assert (found.id, found.severity) == ("network.rdma-port", "warning")


def test_containers_without_the_devices() -> None:
    found = first(with_rdma(PORT, devices=()))
    assert (found.id, found.host, found.plane) == ("collective.rdma-device", "node-b", "collective")
    assert found.fix[0].command == "systemctl restart --no-block ray-worker.service"


@pytest.mark.parametrize(("index", "kind"), [("0", "RoCE v1"), ("2", "empty")])
def test_an_index_that_has_moved_away_from_roce_v2(index: str, kind: str) -> None:
    found = first(with_rdma(PORT, index=index))
    assert (found.id, found.host) == ("collective.gid", "node-b")
    assert found.found == f"{index}, which is {kind}; RoCE v2 is 1, 3"


def test_infiniband_has_no_such_index() -> None:
    case = with_rdma(replace(PORT, layer="InfiniBand", gids={}), index="0")
    assert ids(case) == []
