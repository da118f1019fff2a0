"""Transports that NCCL took, and how a collective over all hosts ended."""

from __future__ import annotations

import pytest

from tests.unit.doctor.cases import FIXTURES
from vllm_cluster.doctor.collective import Collective, read
from vllm_cluster.doctor.collective_report import exit_code, problem
from vllm_cluster.doctor.nccl_log import transport

EIGHT = ", ".join(f"mlx5_{n}:1/RoCE" for n in range(8))


@pytest.mark.parametrize(
    ("file", "kind", "direct", "words"),
    [
        ("gdrdma", "RDMA", True, "IB, GPUDirect"),
        ("gdrdma-h100", "RDMA", True, "IB, GPUDirect"),
        ("roce-2.5-no-gdr", "RDMA", False, "IB, through host memory over mlx5_0:1/RoCE"),
        ("roce-2.22", "RDMA", False, "IBext_v8 over " + EIGHT),
        ("roce-2.27", "RDMA", False, "IB over " + EIGHT),
        ("efa", "RDMA", False, "Libfabric"),
        ("efa-old", "RDMA", False, "AWS Libfabric, through host memory"),
        ("ib-fails-socket", "sockets", False, "Socket over lo"),
        ("ib-no-gdr", "RDMA", False, "IBext_v8, through host memory"),
        ("socket", "sockets", False, "Socket over eth0"),
        ("socket-broken", "sockets", False, "Socket"),
    ],
)
def test_the_transport_that_nccl_really_took(
    file: str, kind: str, *, direct: bool, words: str
) -> None:
    found = transport((FIXTURES / "nccl" / f"{file}.txt").read_text())
    assert (found.kind, found.gpu_direct, found.text()) == (kind, direct, words)


@pytest.mark.parametrize(
    "kind", ["/GDRDMA", "/GDRDMA(PCI)", "/GDRDMA/Shared", "/GDRDMA(PCI)/Shared"]
)
@pytest.mark.parametrize("device", ["0", "0(4)"])  # (4): through rank 4, which sits next to it
def test_every_form_of_gpudirect_is_known(kind: str, device: str) -> None:
    """The forms of NCCL 2.29, src/transport/net.cc, sendSetup and recvSetup."""
    log = f"a:1:2 [0] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/{device}{kind}\n"
    assert transport(log).gpu_direct
    plain = log.replace(kind, "")
    assert not transport(log + plain).gpu_direct


def test_libfabric_over_tcp_is_no_rdma() -> None:
    log = (FIXTURES / "nccl" / "efa.txt").read_text()
    assert transport(log).kind == "RDMA"
    assert transport(log.replace("Provider is efa", "Provider is tcp")).kind == "sockets"


def test_one_channel_over_sockets_is_no_rdma() -> None:
    log = (FIXTURES / "nccl" / "gdrdma.txt").read_text()
    log += (FIXTURES / "nccl" / "socket-broken.txt").read_text()
    found = transport(log)
    assert found.kind == "sockets"
    assert any("closed by remote peer" in words for words in found.warnings)


def test_sockets_where_the_description_says_rdma_is_a_failure() -> None:
    found = transport((FIXTURES / "nccl" / "socket.txt").read_text())
    result = Collective("nccl", (), found, 1.0)
    assert problem(result, rdma=True) == "the description says RDMA, NCCL took Socket over eth0"
    assert problem(result, rdma=False) == ""
    assert problem(Collective("gloo", (), transport(""), 1.0), rdma=True) == ""


def test_the_host_that_failed_is_named_with_its_own_words() -> None:
    good = '@@result {"lines": [[1024, 0.001, 0.002]], "seconds": 2.0}\n'
    bad = "Traceback\nRuntimeError: Gloo connectFullMesh failed with timed out\n"
    found = read("gloo", [("node-a", good, ""), ("node-b", "", bad)])
    assert found.failed == "node-b"
    assert "connectFullMesh" in problem(found, rdma=False)
    whole = read("gloo", [("node-a", good, ""), ("node-b", good, "")])
    assert whole.error == ""
    assert whole.lines[0].gbit_s == pytest.approx(2 * 1024 * 8 / 1e9 / 0.002)


def test_of_hosts_that_fail_the_one_that_the_others_waited_for_is_named() -> None:
    waited = "torch.distributed.DistStoreError: Timed out after 61 seconds, 1/2 clients joined.\n"
    cause = "docker: Error response from daemon: No such image: x\n"
    found = read("nccl", [("node-a", "", waited), ("node-b", "", cause)])
    assert (found.failed, exit_code(found, problem(found, rdma=True))) == ("node-b", 1)
    both = read("nccl", [("node-a", "", waited), ("node-b", "", waited)])
    assert both.failed == "node-a"


def test_a_host_that_ssh_does_not_reach_is_no_failed_collective() -> None:
    rows = [("node-a", "", "Error: Timed out\n"), ("node-b", "", "@@silent No route to host\n")]
    found = read("gloo", rows)
    words = problem(found, rdma=False)
    assert words == "no answer of node-b: No route to host"
    assert exit_code(found, words) == 2
