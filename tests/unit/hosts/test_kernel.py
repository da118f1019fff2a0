"""Settings of the kernel meet those of others: nothing is lowered, nothing of theirs is lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_cluster.facts.kernel import KernelFact
from vllm_cluster.plan import PortUse
from vllm_cluster.plan.kernel import (
    RESERVED,
    KernelState,
    joined,
    parsed,
    resolved,
    settings,
    unmet,
)

PORTS = (
    PortUse("api", 8000, 8000, "head", "all", "api"),
    PortUse("gcs", 6379, 6379, "head", "all", "cluster"),
    PortUse("node", 6380, 6380, "every host", "all", "cluster"),
    PortUse("workers", 20000, 20999, "every host", "all", "cluster"),
)
VALUES = {
    "net.core.somaxconn": "4096",
    "net.ipv4.tcp_rmem": "4096 131072 6291456",
    RESERVED: "",
    "vm.swappiness": "60",
}


def state(**others: Any) -> KernelState:
    return KernelState(values=VALUES, memory_bytes=2**36, **others)


def found(elsewhere: dict[str, str], overrides: dict[str, Any] | None = None) -> dict[str, str]:
    wanted = settings(PORTS, overrides or {})
    host = state(elsewhere=elsewhere)
    return {s.name: s.value for s in resolved(wanted, host, set(overrides or {}))}


def test_every_setting_has_a_reason() -> None:
    assert all(len(setting.reason) > 20 for setting in settings(PORTS, {}))


def test_our_ports_are_reserved_as_the_kernel_writes_them() -> None:
    assert found({})[RESERVED] == "6379-6380,8000,20000-20999"


def test_ports_that_somebody_reserved_stay_reserved() -> None:
    assert found({RESERVED: "8001,30000-30010"})[RESERVED] == (
        "6379-6380,8000-8001,20000-20999,30000-30010"
    )


def test_a_larger_value_of_others_is_not_lowered() -> None:
    more = {"net.core.somaxconn": "65535", "net.ipv4.tcp_rmem": "8192 65536 134217728"}
    assert found(more)["net.core.somaxconn"] == "65535"
    assert found(more)["net.ipv4.tcp_rmem"] == "8192 131072 134217728"
    assert found({"net.core.somaxconn": "128"})["net.core.somaxconn"] == "4096"


def test_a_choice_of_others_stays_unless_the_description_insists() -> None:
    assert "vm.swappiness" not in found({"vm.swappiness": "1"})
    assert found({})["vm.swappiness"] == "10"
    assert found({"vm.swappiness": "1"}, {"vm.swappiness": 5})["vm.swappiness"] == "5"
    assert "vm.swappiness" not in found({}, {"vm.swappiness": None})


def test_a_setting_that_this_kernel_lacks_is_left_out() -> None:
    assert "kernel.numa_balancing" not in found({})


def test_what_is_in_force_is_not_set_again() -> None:
    wanted = resolved(settings(PORTS, {}), state(), set())
    assert {s.name for s in unmet(wanted, state())} == {
        "net.ipv4.tcp_rmem", RESERVED, "vm.swappiness"
    }  # fmt: skip
    done = KernelState(values={
        "net.core.somaxconn": "8192", "net.ipv4.tcp_rmem": "4096\t131072\t67108864",
        RESERVED: "20000-20999,6379,6380,8000", "vm.swappiness": "10",
    })  # fmt: skip
    assert unmet(resolved(settings(PORTS, {}), done, set()), done) == []


@given(st.sets(st.integers(1, 300)))
def test_a_list_of_ports_holds_exactly_its_ports(ports: set[int]) -> None:
    ranges = parsed(joined((port, port) for port in ports))
    assert {port for first, last in ranges for port in range(first, last + 1)} == ports
    assert all(a[1] + 1 < b[0] for a, b in pairwise(ranges))


@pytest.mark.parametrize("junk", ["a", "1-", "1-b"])
def test_a_list_that_is_none_is_an_error(junk: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parsed(f"5,{junk}x")


# Ubuntu 24.04: chrony was chosen, and a file of the provider raises the backlog.
UBUNTU = """value net.core.somaxconn 4096
value net.ipv4.tcp_rmem 4096\t131072\t6291456
value vm.swappiness 60
other vm/swappiness 1
other net.core.somaxconn 1024
other net.core.somaxconn 16384
memory 1081101176832
shm 540550588416
time chrony active
synchronized yes
"""


def test_a_kernels_state_is_read_from_one_answer() -> None:
    host = KernelFact().process(UBUNTU.splitlines())
    assert host.values["net.ipv4.tcp_rmem"] == "4096 131072 6291456"
    assert host.elsewhere == {"vm.swappiness": "1", "net.core.somaxconn": "16384"}
    assert host.time_services == {"chrony": "active"}
    assert (host.synchronized, host.container) == (True, False)
    assert host.memory_bytes == 1081101176832
