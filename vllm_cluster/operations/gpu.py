"""NVIDIA's driver and container toolkit: checked, held, installed where that was asked for."""

from __future__ import annotations

from collections.abc import Generator

from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.context import host

from vllm_cluster.facts.gpu import GpuFact
from vllm_cluster.operations import apt, owned, packages
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.plan import gpu
from vllm_cluster.plan.gpu import GpuState, Wanted

# A card leaves persistence mode off for a moment after its daemon starts:
# https://github.com/leptonai/gpud/issues/431
_PERSISTENCE_WAIT_S = 20
_HELD = "--allow-change-held-packages"

Commands = Generator[StringCommand, None, None]


class LostGpus(FactBase[list[str]]):
    """Those of the running `containers` that have lost their GPUs: NAME and nvidia-smi's words."""

    @staticmethod
    def default() -> list[str]:
        return []

    def command(self, containers: list[str]) -> StringCommand:
        return StringCommand(
            f"for c in {' '.join(containers)}; do "
            '[ "$(docker container inspect -f "{{.State.Running}}" $c 2>/dev/null)" = true ] '
            "|| continue; out=$(timeout 60 docker exec $c nvidia-smi --list-gpus 2>&1) || "
            'case $out in *NVML*) echo "$c $out" | head -n1 ;; esac; done; true'
        )

    def process(self, output: list[str]) -> list[str]:
        return [line for line in output if line.strip()]


@operation()
def driver(wanted: Wanted, repository: apt.RepositoryFor, cluster: str) -> Commands:
    """Have the driver that the description wants loaded, healthy, and safe from upgrades."""
    state = host.get_fact(GpuFact)
    differs = gpu.differs(state, wanted.driver)
    if wanted.driver.install and (differs or gpu.lacks_fabric_manager(state)):
        trusted = yield from apt.repository(repository, cluster)
        if not trusted:
            return
        if differs:
            host.log(differs)
            yield from _installed(state, wanted)
            state = host.get_fact(GpuFact)
        # Only a loaded driver shows whether there are NVSwitches.
        if gpu.lacks_fabric_manager(state):
            name = f"nvidia-fabricmanager={state.loaded}-1"
            yield from packages.install([name], options=f"{_HELD} --allow-downgrades")
            state = host.get_fact(GpuFact)
    # Before anything is refused: a host that must reboot first must not upgrade meanwhile.
    if wanted.driver.hold:
        yield from _held(state, driver=True)
    words = list(gpu.refusals(state, wanted))
    if words:
        yield refuse("; ".join(words))
        return
    for line in gpu.warnings(state):
        host.log_styled(line, fg="yellow")
    yield from _settings(state)


def _installed(state: GpuState, wanted: Wanted) -> Commands:
    pin, name = gpu.to_install(wanted.driver)
    yield from packages.install([pin])
    yield _candidate(name, gpu.upstream_pattern(wanted.driver))
    held = gpu.held_driver(state)
    if held:
        # apt moves a held package only where it is named, not as a dependency of the new driver.
        yield packages.mark("unhold", held)
    yield from packages.install([name], options=f"{_HELD} --allow-downgrades")
    # Where nothing held the GPUs, the driver serves at once; else the check asks for a reboot.
    yield StringCommand("modprobe nvidia 2>/dev/null || true")


def _candidate(name: str, pattern: str) -> StringCommand:
    """Fails, before anything is installed, where apt would take another version in spite of the
    pin: preferences of the user's outrank it, or the repository lacks what was asked for."""
    words = f"refused: apt would install {name} $c, not {pattern}; apt-cache policy {name} says why"
    return StringCommand(
        f"c=$(apt-cache policy {name} | sed -n 's/^ *Candidate: //p'); "
        f'case ${{c#*:}} in {pattern}) ;; *) echo "{words}" >&2; exit 1 ;; esac'
    )


def _held(state: GpuState, *, driver: bool) -> Commands:
    names = gpu.to_hold(state, driver=driver)
    if names:
        host.log(f"holds {', '.join(names)} against upgrades")
        record = "\n".join(f"own hold {name} -" for name in names)
        yield packages.mark("hold", names, before=f"{owned.SHELL}{record}")


def _settings(state: GpuState) -> Commands:
    mig = [card for card in state.cards if card.mig]
    if mig:
        host.log(f"switches MIG off on {len(mig)} GPUs")
        record = owned.first("gpu", "mig", f"on for {len(mig)}")
        yield StringCommand(f"{record} && nvidia-smi --multi-instance-gpu=0")
        still = [str(card.index) for card in host.get_fact(GpuFact).cards if card.mig]
        if still:
            yield refuse(
                f"MIG stays on (GPU {', '.join(still)}) until nothing uses the card and it is "
                "reset; end what uses it, `nvidia-smi --gpu-reset` or reboot, and run again"
            )
            return
    fabric = state.switches and not state.fabric_active
    if fabric:
        host.log("nvidia-fabricmanager.service: is not active")
        unit = "nvidia-fabricmanager.service"
        record = owned.first("unit", unit, "disabled inactive")
        yield StringCommand(f"{record} && systemctl enable --quiet --now {unit}")
    idle = not all(card.persistence for card in state.cards)
    if idle:
        host.log("GPUs lose their state between processes: persistence mode is off")
        record = owned.first("gpu", "persistence", "off")
        yield StringCommand(f"{record} && {{ {_persistence(state)}; }}")
    if not mig and not fabric and not idle:
        host.noop(f"driver {state.loaded} with {len(state.cards)} GPUs")


def _persistence(state: GpuState) -> str:
    daemon = "systemctl enable --quiet nvidia-persistenced; systemctl restart nvidia-persistenced"
    start = daemon if state.persistenced else "nvidia-smi --persistence-mode=1 >/dev/null"
    query = "nvidia-smi --query-gpu=persistence_mode --format=csv,noheader"
    return (
        f"{{ {start}; }} && end=$(( $(date +%s) + {_PERSISTENCE_WAIT_S} )) && "
        f"while {query} | grep -qv Enabled; do [ $(date +%s) -lt $end ] || "
        f'{{ echo "persistence mode stays off" >&2; exit 1; }}; sleep 0.5; done'
    )


@operation()
def toolkit(version: str, install: bool, repository: apt.RepositoryFor, cluster: str) -> Commands:
    """Have the container toolkit in this version, all four packages of it, and held."""
    state = host.get_fact(GpuFact)
    found = {name: state.packages.get(name, "") for name in gpu.TOOLKIT_PACKAGES}
    wrong = {name: have for name, have in found.items() if have != version}
    if wrong and not install:
        told = ", ".join(f"{name} {have or 'missing'}" for name, have in wrong.items())
        yield refuse(f"{told}, not {version}; install them, or let toolkit.install: true do it")
        return
    if wrong:
        for name, have in wrong.items():
            host.log(f"{name}: {have or 'missing'}, not {version}")
        trusted = yield from apt.repository(repository, cluster)
        if not trusted:
            return
        names = [f"{name}={version}" for name in gpu.TOOLKIT_PACKAGES]
        yield from packages.install(names, options=f"{_HELD} --allow-downgrades")
        state = host.get_fact(GpuFact)
    yield from _held(state, driver=False)
    if not wrong and not gpu.to_hold(state, driver=False):
        host.noop(f"container toolkit {version}")


@operation()
def kept(containers: list[str]) -> Commands:
    """Start those containers anew that have lost their GPUs.

    systemd takes devices away that it does not know of when it reads its units again, as every
    deploy lets it: https://github.com/NVIDIA/nvidia-container-toolkit/issues/48. Through CDI it
    knows them; this looks whether that holds.
    """
    lost = host.get_fact(LostGpus, containers=containers)
    if not lost:
        host.noop("every running container sees its GPUs")
        return
    for line in lost:
        host.log(f"lost its GPUs: {line}")
    units = [f"{line.split(' ', 1)[0]}.service" for line in lost]
    yield StringCommand("systemctl restart --no-block", *units)
