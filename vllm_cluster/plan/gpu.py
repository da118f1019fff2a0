"""What NVIDIA's driver must be on a host, and what is wrong with the one that is there.

Pure: a state goes in, words come out. Each of them names what was found and what mends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from vllm_cluster.spec.hosts_model import Driver

# Everything that must move together: a hold on the driver alone let libnvidia-common go ahead
# (https://github.com/lyulyul/shine-cluster/issues/50), and a library that is newer than the
# loaded module answers `Driver/library version mismatch` to every new process.
_SET = re.compile(
    r"^(nvidia-(?!cuda-)|libnvidia-|cuda-drivers|libcuda1|libnvcuvid1|libnvoptix1|libxnvctrl|"
    r"xserver-xorg-video-nvidia|linux-(modules|objects|signatures)-nvidia|firmware-nvidia|"
    r"libgl.*-nvidia|libegl.*-nvidia|libgles-nvidia|libglx-nvidia|libvulkan-nvidia)"
)
# A declared 80GiB card shows 81559 MiB or 81920 MiB, depending on ECC and the driver.
_MEMORY_TOLERANCE = 0.95

# NVIDIA, "Xid Errors": those after which a card needs a person.
_XIDS = {
    31: "a memory access fault of an application",
    48: "an uncorrectable error of its memory; replace the card if it comes again",
    63: "a row of its memory was retired; reset the card or reboot",
    64: "a row of its memory could not be retired; replace the card",
    74: "an error of NVLink; check the bridge or the board",
    79: "it fell off the bus; check power, seating and cooling, then reboot",
    94: "a contained memory error; restart what ran on it",
    95: "an uncontained memory error; reset the card or reboot",
    119: "its firmware (GSP) does not answer; reboot, update the driver if it comes again",
    120: "its firmware (GSP) failed; reboot, update the driver if it comes again",
}
_XID = re.compile(r"Xid \(([^)]*)\): (\d+)")


@dataclass(frozen=True)
class Card:
    """A GPU as nvidia-smi lists it."""

    index: int
    name: str
    uuid: str
    memory_mib: int
    persistence: bool
    mig: bool
    ecc_uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False


@dataclass(frozen=True)
class GpuState:
    """What a host says of its driver and its GPUs.

    `loaded` is the version of the kernel module that runs, `library` that of the installed
    libnvidia-ml, `module` that of the module on the disk for this kernel; empty where there is
    none. `packages` maps names to versions, `held` are those of them on hold.
    """

    smi_error: str = ""
    cards: tuple[Card, ...] = ()
    loaded: str = ""
    library: str = ""
    module: str = ""
    nouveau: bool = False
    next_kernel: str = ""
    next_module: bool = True
    packages: dict[str, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    switches: bool = False
    fabric_manager: str = ""
    fabric_active: bool = False
    persistenced: str = ""
    xids: tuple[str, ...] = ()

    @property
    def installed(self) -> str:
        """The version that is installed; empty without a driver."""
        return self.library or self.module


@dataclass(frozen=True)
class Wanted:
    """What a host shall have."""

    driver: Driver
    count: int
    model: str = ""
    memory_bytes: int | None = None


def driver_set(packages: Iterable[str]) -> list[str]:
    """Those of `packages` that belong to the driver or the container toolkit, sorted."""
    toolkit = set(TOOLKIT_PACKAGES)
    return sorted(name for name in packages if _SET.match(name) or name in toolkit)


TOOLKIT_PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
UNATTENDED = ("^nvidia-", "^libnvidia-", "^cuda-drivers", "^libcuda1", "^linux-.*-nvidia-")


def to_install(driver: Driver) -> tuple[str, str]:
    """The pinning package, and the driver's, to be installed after it.

    Since branch 590 the names carry no branch, so the newest would come without the pin
    (NVIDIA Driver Installation Guide, "Version locking").
    """
    pin = f"nvidia-driver-pinning-{driver.version or driver.branch}"
    meta = "nvidia-open" if driver.kernel_module == "open" else "cuda-drivers"
    return pin, meta


def upstream_pattern(driver: Driver) -> str:
    """What a package's version must look like, without its epoch, in a shell's `case`."""
    return f"{driver.version}-*" if driver.version else f"{driver.branch}.*"


def differs(state: GpuState, driver: Driver) -> str:
    """How the installed driver differs from the description; empty when it does not."""
    have = state.installed
    if not have:
        return "no NVIDIA driver is installed"
    if driver.version and have != driver.version:
        return f"driver {have} is installed, not {driver.version}"
    if driver.branch and not have.startswith(f"{driver.branch}."):
        return f"driver {have} is installed, not one of branch {driver.branch}"
    return ""


def lacks_fabric_manager(state: GpuState) -> bool:
    """Whether the NVSwitches of this host are without the manager of the driver, which runs."""
    if not state.switches or not state.loaded or state.library not in {"", state.loaded}:
        return False  # nothing to manage, or a reboot comes first
    return state.fabric_manager != state.loaded


def refusals(state: GpuState, wanted: Wanted) -> Iterator[str]:
    """Why vLLM cannot run on this host; each with what mends it."""
    yield from _driver_refusals(state, wanted.driver)
    if not state.loaded or state.smi_error:
        return
    if len(state.cards) < wanted.count:
        yield (
            f"nvidia-smi shows {len(state.cards)} GPUs, and {wanted.count} are declared; "
            "look for a card that fell off (`dmesg | grep NVRM`), or correct hosts.NAME.gpus"
        )
    others = sorted({c.name for c in state.cards if wanted.model not in c.name})
    if wanted.model and others:
        yield f"{', '.join(others)} here, and gpu.model is {wanted.model}; correct one of them"
    yield from _memory(state, wanted)
    mig = [str(card.index) for card in state.cards if card.mig]
    if mig and wanted.driver.mig == "refuse":
        yield (
            f"MIG is on (GPU {', '.join(mig)}): a slice of a card cannot take part in tensor "
            "parallelism; `nvidia-smi -mig 0` ends it, or driver.mig: disable here"
        )


def _driver_refusals(state: GpuState, driver: Driver) -> Iterator[str]:
    wrong = differs(state, driver)
    if wrong and not driver.install:
        yield f"{wrong}; install it, or let driver.install: true do it"
    elif wrong:
        yield f"{wrong}, although it was asked for; `apt-cache policy nvidia-open` says why"
    elif not state.loaded and state.nouveau:
        yield f"nouveau holds the GPUs; driver {state.installed} loads after a reboot"
    elif not state.loaded:
        yield f"driver {state.installed} is installed and not loaded; reboot this host"
    elif state.library and state.loaded != state.library:
        yield (
            f"driver {state.loaded} is loaded and {state.library} installed, so that every new "
            "process fails (`Driver/library version mismatch`); reboot this host"
        )
    elif state.smi_error:
        yield f"nvidia-smi fails: {state.smi_error}"
    elif lacks_fabric_manager(state):
        have = state.fabric_manager or "none"
        yield (
            f"fabric manager {have} on a host with NVSwitch and driver {state.loaded}: CUDA does "
            f"not start (error 802); `apt-get install nvidia-fabricmanager={state.loaded}-1`, or "
            "the package of your distribution in that very version"
        )


def _memory(state: GpuState, wanted: Wanted) -> Iterator[str]:
    if wanted.memory_bytes is None:
        return
    least_mib = wanted.memory_bytes / 2**20 * _MEMORY_TOLERANCE
    small = [card for card in state.cards if card.memory_mib < least_mib]
    if small:
        found = ", ".join(f"GPU {card.index}: {card.memory_mib} MiB" for card in small)
        yield f"less memory than gpu.memory says ({found}); correct gpu.memory or the hosts"


def warnings(state: GpuState) -> Iterator[str]:
    """What will hurt later; each with what mends it."""
    if state.module and state.loaded and state.module != state.loaded:
        yield f"the next boot loads driver {state.module}; {state.loaded} runs now"
    if state.installed and not state.next_module:
        yield (
            f"the newest kernel, {state.next_kernel}, has no nvidia module: the next boot would "
            f"come up without GPUs; `dkms autoinstall -k {state.next_kernel}`"
        )
    for card in state.cards:
        where = f"GPU {card.index} ({card.uuid})"
        if card.remap_failed:
            yield f"{where} could not remap a row of its memory; replace it"
        elif card.remap_pending:
            yield f"{where} waits to remap a row of its memory; `nvidia-smi --gpu-reset` or reboot"
        if card.ecc_uncorrected:
            yield f"{where} had {card.ecc_uncorrected} uncorrectable memory errors in its life"
    for line in state.xids:
        match = _XID.search(line)
        if match is not None:
            meaning = _XIDS.get(int(match[2]), "see NVIDIA's list of Xid errors")
            yield f"the kernel reported Xid {match[2]} for {match[1]} since boot: {meaning}"


def to_hold(state: GpuState, *, driver: bool) -> list[str]:
    """Packages that an upgrade could still move: the toolkit's, which has one version, and the
    driver's where `driver` says so."""
    held = state.held if driver else {*state.held, *_without_toolkit(state.packages)}
    return [name for name in driver_set(state.packages) if name not in held]


def held_driver(state: GpuState) -> list[str]:
    """Packages of the driver that nothing may move as long as they are held."""
    return sorted(_without_toolkit(driver_set(state.held)))


def _without_toolkit(packages: Iterable[str]) -> set[str]:
    return {*packages} - {*TOOLKIT_PACKAGES}
