"""RDMA: ports that carry, links without errors, and containers that can use them."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, by_hand, on
from vllm_cluster.facts.doctor.gpu_model import RdmaPort

_NO_MANAGER = "no subnet manager has given it an address"
_ROCE = "RoCE v2"


def described(case: Case) -> tuple[str, ...]:
    """The adapters of the description; none where it says nothing of RDMA."""
    return tuple(filter(None, case.plan.environment.get("NCCL_IB_HCA", "").lstrip("=").split(",")))


def _adapter(port: RdmaPort) -> str:
    return port.name.split("/")[0]


def ports(case: Case) -> Iterator[Finding]:
    """Ports that carry nothing. One that the description names is failing: NCCL waits on it."""
    wanted = {name.split(":")[0] for name in described(case)}
    for host, facts in case.seen():
        for name in sorted(wanted - {_adapter(port) for port in facts.rdma}):
            there = ", ".join(sorted({_adapter(port) for port in facts.rdma})) or "none"
            yield Finding(
                "network.rdma-missing", "network", host.name,
                expected=f"the RDMA adapter {name} of {case.description}",
                found=f"no such adapter; there are {there}",
                evidence=f"ls /sys/class/infiniband: {there}",
                fix=by_hand(f"Load the driver of {name} on {host.name}, or correct rdma.devices in "
                            f"{case.description}"),
            )  # fmt: skip
        for port in facts.rdma:
            if port.state and port.state != "ACTIVE":
                yield Finding(
                    "network.rdma-port", "network", host.name,
                    expected=f"RDMA port {port.name} active",
                    found=f"{port.state}: {_why(port)}",
                    evidence=f"{port.name}: {port.state} / {port.physical} {port.layer}",
                    fix=by_hand(f"Mend the link of {_adapter(port)} on {host.name}, or leave it "
                                "out of NCCL_IB_HCA"),
                    severity="failing" if _adapter(port) in wanted else "warning",
                )  # fmt: skip


def _why(port: RdmaPort) -> str:
    if port.state in {"INIT", "INITIALIZING"}:
        return _NO_MANAGER
    if port.state == "DOWN" and port.physical == "LinkUp":
        return "the cable has a link, but the port is switched off"
    return f"no link ({port.physical or 'no signal'})" if port.state == "DOWN" else port.physical


def errors(case: Case) -> Iterator[Finding]:
    """Errors that the links count."""
    for host, facts in case.seen():
        for port in facts.rdma:
            bad = {name: count for name, count in port.errors.items() if count}
            if bad:
                yield Finding(
                    "network.rdma-errors", "network", host.name,
                    expected=f"no errors on {port.name}",
                    found=", ".join(f"{name} {count}" for name, count in sorted(bad.items())),
                    fix=by_hand(f"Clean or change the cable of {_adapter(port)} on {host.name}"),
                    severity="warning",
                )  # fmt: skip


def devices(case: Case) -> Iterator[Finding]:
    """The adapters inside the containers: without them NCCL takes sockets and says so nowhere
    (https://github.com/vllm-project/vllm/pull/42075)."""
    for host, facts in case.deployed():
        for name, inside in facts.docker.inside.items():
            if described(case) and name in host.containers and not inside.rdma_devices:
                yield Finding(
                    "collective.rdma-device", "collective", host.name,
                    expected=f"/dev/infiniband in {name}",
                    found="none: NCCL takes sockets there",
                    evidence=f"ls {name}:/dev/infiniband: No such file or directory",
                    fix=on(host.name, f"systemctl restart --no-block {name}.service"),
                )  # fmt: skip


def gid(case: Case) -> Iterator[Finding]:
    """The GID index that a container was started with still leads to RoCE v2: indexes move when an
    address comes or goes (https://github.com/NVIDIA/nccl/issues/2157)."""
    for host, facts in case.deployed():
        named = {name.split(":")[0] for name in described(case)}
        ours = [p for p in facts.rdma if p.gids and (_adapter(p) in named or not named)]
        for name, inside in facts.docker.inside.items():
            index = inside.environment.get("NCCL_IB_GID_INDEX", "")
            wrong = [p for p in ours if index.isdigit() and _kind(p, int(index)) != _ROCE]
            if name in host.containers and wrong:
                right = [i for i, (kind, _) in sorted(wrong[0].gids.items()) if kind == _ROCE]
                yield Finding(
                    "collective.gid", "collective", host.name,
                    expected=f"NCCL_IB_GID_INDEX in {name} that is {_ROCE} on {wrong[0].name}",
                    found=f"{index}, which is {_kind(wrong[0], int(index)) or 'empty'}; {_ROCE} is "
                    f"{', '.join(map(str, right)) or 'nowhere'}",
                    evidence=f"{wrong[0].name}/gid_attrs/types/{index}: "
                    f"{_kind(wrong[0], int(index)) or 'Invalid argument'}",
                    fix=on(host.name, f"systemctl restart --no-block {name}.service"),
                )  # fmt: skip


def _kind(port: RdmaPort, index: int) -> str:
    return port.gids.get(index, ("", ""))[0]


CHECKS = (ports, errors, devices, gid)
