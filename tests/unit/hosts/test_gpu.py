"""What a host says of its driver, and what follows: refused with the fix, told, held, installed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_cluster.facts.gpu import read
from vllm_cluster.plan.gpu import (
    GpuState,
    Wanted,
    differs,
    driver_set,
    refusals,
    to_hold,
    to_install,
    warnings,
)
from vllm_cluster.spec.hosts_model import Driver

# The answer of a host with two A100 on an NVSwitch board, Ubuntu 22.04's own server driver.
UBUNTU = """loaded 570.133.20
module 570.133.20
library 570.133.20
package install libnvidia-cfg1-570-server 570.133.20-0ubuntu0.22.04.1
package hold libnvidia-common-570-server 570.133.20-0ubuntu0.22.04.1
package install libnvidia-compute-570-server 570.133.20-0ubuntu0.22.04.1
package install linux-modules-nvidia-570-server-generic 5.15.0-140.150
package install nvidia-fabricmanager-570 570.133.20-0ubuntu0.22.04.1
package install nvidia-utils-570-server 570.133.20-0ubuntu0.22.04.1
package install nvidia-container-toolkit 1.19.0-1
package install nvidia-cuda-toolkit-doc 11.5.1-1ubuntu1
switches there
fabric active
persistenced active
card 0, NVIDIA A100-SXM4-80GB, GPU-a, 81920, Enabled, Disabled, 0
card 1, NVIDIA A100-SXM4-80GB, GPU-b, 81920, Enabled, Disabled, 0
rows GPU-a, No, No
rows GPU-b, No, No
"""
WANTED = Wanted(Driver(), count=2, model="A100-SXM4-80GB", memory_bytes=80 * 2**30)


@pytest.fixture
def state() -> GpuState:
    return read(UBUNTU.splitlines())


def test_a_sound_host_has_nothing_to_say(state: GpuState) -> None:
    assert list(refusals(state, WANTED)) == []
    assert list(warnings(state)) == []
    assert state.installed == "570.133.20"
    assert state.fabric_manager == "570.133.20"
    assert state.fabric_active


def test_the_whole_set_is_held_and_nothing_else(state: GpuState) -> None:
    assert to_hold(state, driver=True) == [
        "libnvidia-cfg1-570-server", "libnvidia-compute-570-server",
        "linux-modules-nvidia-570-server-generic", "nvidia-container-toolkit",
        "nvidia-fabricmanager-570", "nvidia-utils-570-server",
    ]  # fmt: skip
    # Where the driver shall not be held, the toolkit still has its one version.
    assert to_hold(state, driver=False) == ["nvidia-container-toolkit"]
    others = ["linux-image-generic", "docker.io", "libnvme1", "cuda-toolkit-12-8"]
    assert driver_set(others) == []
    debian = ["libcuda1", "libnvcuvid1", "nvidia-open", "cuda-drivers-580", "libnvidia-container1"]
    assert driver_set(debian) == sorted(debian)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loaded": "", "library": "", "module": ""}, "no NVIDIA driver is installed"),
        ({"loaded": ""}, "not loaded; reboot"),
        ({"loaded": "", "nouveau": True}, "nouveau holds the GPUs"),
        ({"library": "570.148.08"}, "570.133.20 is loaded and 570.148.08 installed"),
        ({"smi_error": "No devices were found"}, "nvidia-smi fails: No devices were found"),
        ({"fabric_manager": "570.124.06"}, "apt-get install nvidia-fabricmanager=570.133.20-1"),
        ({"fabric_manager": ""}, "fabric manager none on a host with NVSwitch"),
    ],
)
def test_a_driver_that_cannot_serve_is_refused_with_the_fix(
    state: GpuState, change: dict[str, object], words: str
) -> None:
    (said,) = refusals(replace(state, **change), WANTED)  # type: ignore[arg-type]
    assert words in said


def test_cards_are_counted_named_and_measured(state: GpuState) -> None:
    one, two = state.cards
    assert "shows 1 GPUs, and 2 are declared" in next(
        refusals(replace(state, cards=(one,)), WANTED)
    )
    small = replace(
        state, cards=(one, replace(two, name="NVIDIA A100-PCIE-40GB", memory_mib=40960))
    )
    said = list(refusals(small, WANTED))
    assert "gpu.model is A100-SXM4-80GB" in said[0]
    assert "GPU 1: 40960 MiB" in said[1]
    # ECC takes some of a card's memory: 81559 MiB are an 80GiB card.
    ecc = replace(state, cards=(one, replace(two, memory_mib=81559)))
    assert list(refusals(ecc, WANTED)) == []


def test_mig_is_refused_unless_it_may_be_switched_off(state: GpuState) -> None:
    on = replace(state, cards=tuple(replace(card, mig=True) for card in state.cards))
    (said,) = refusals(on, WANTED)
    assert "GPU 0, 1" in said
    assert "nvidia-smi -mig 0" in said
    assert list(refusals(on, replace(WANTED, driver=Driver(mig="disable")))) == []


def test_a_branch_and_a_version_are_what_is_installed_not_what_was_asked(state: GpuState) -> None:
    assert differs(state, Driver(branch="570")) == ""
    assert differs(state, Driver(branch="580")) == (
        "driver 570.133.20 is installed, not one of branch 580"
    )
    assert differs(state, Driver(version="570.133.20")) == ""
    assert "not 570.133.07" in differs(state, Driver(version="570.133.07"))
    assert "although it was asked for" in next(
        refusals(state, replace(WANTED, driver=Driver(install=True, branch="580")))
    )


def test_sick_cards_are_told_with_what_mends_them() -> None:
    lines = [
        *UBUNTU.splitlines()[:-4],
        "card 0, NVIDIA A100-SXM4-80GB, GPU-a, 81920, Disabled, Disabled, 3",
        "card 1, NVIDIA A100-SXM4-80GB, GPU-b, 81920, Enabled, [N/A], [N/A]",
        "rows GPU-a, Yes, No",
        "rows GPU-b, No, Yes",
        "xid NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "xid NVRM: Xid (PCI:0000:65:00): 999, something new",
        "kernel 6.8.0-60-generic",
    ]
    state = read(lines)
    said = "\n".join(warnings(state))
    assert "GPU 0 (GPU-a) waits to remap a row" in said
    assert "GPU 0 (GPU-a) had 3 uncorrectable" in said
    assert "GPU 1 (GPU-b) could not remap a row of its memory; replace it" in said
    assert "Xid 79 for PCI:0000:17:00 since boot: it fell off the bus" in said
    assert "Xid 999" in said
    assert "6.8.0-60-generic, has no nvidia module" in said
    assert not state.cards[0].persistence


def test_a_driver_without_a_card_is_read_and_refused() -> None:
    state = read(["loaded 570.133.20", "library 570.133.20", "card "])
    assert state.cards == ()
    assert "shows 0 GPUs, and 1 are declared" in next(refusals(state, Wanted(Driver(), count=1)))


def test_the_pin_comes_first_and_names_carry_no_branch() -> None:
    assert to_install(Driver(install=True, branch="590")) == (
        "nvidia-driver-pinning-590", "nvidia-open"
    )  # fmt: skip
    exact = Driver(install=True, version="580.95.05", kernel_module="proprietary")
    assert to_install(exact) == ("nvidia-driver-pinning-580.95.05", "cuda-drivers")
