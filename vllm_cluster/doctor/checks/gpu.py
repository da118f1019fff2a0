"""GPUs: driver loaded and equal everywhere, cards counted, Docker able to hand them out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, Step, by_hand, on
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.plan import HostPlan

_BRANCH = re.compile(r"^\d+")
_SUCH_AS = "580"
# What Ubuntu calls the driver; NVIDIA's packages are nvidia-open and cuda-drivers, Debian's carries
# no branch.
_UBUNTUS = re.compile(r"nvidia-driver-\d+((?:-server)?(?:-open)?)")


def driver(case: Case) -> Iterator[Finding]:
    """The driver: there, loaded, its libraries of the same version as its module."""
    for host, facts in _nvidia(case):
        gpus = facts.gpus
        if gpus.error.startswith("no nvidia-smi"):
            yield Finding(
                "gpu.driver-missing", "gpu", host.name,
                expected="the NVIDIA driver", found="no nvidia-smi on this host",
                evidence="nvidia-smi: command not found",
                fix=_install(case, host, facts),
            )  # fmt: skip
        elif "version mismatch" in gpus.error or (
            gpus.loaded and gpus.driver and gpus.loaded != gpus.driver
        ):
            yield Finding(
                "gpu.driver-mismatch", "gpu", host.name,
                expected="driver and libraries of one version",
                found=f"the kernel has loaded {gpus.loaded}, the libraries are "
                f"{_library(facts) or 'newer'}: an update without a reboot",
                evidence=gpus.error or f"nvidia-smi: {gpus.driver}; module: {gpus.loaded}",
                fix=on(host.name, "systemctl reboot"),
            )  # fmt: skip
        elif gpus.error:
            yield Finding(
                "gpu.driver-failing", "gpu", host.name,
                expected="an answer of nvidia-smi", found="it failed", evidence=gpus.error,
                fix=on(host.name, "systemctl reboot"),
            )  # fmt: skip


def _install(case: Case, host: HostPlan, facts: HostFacts) -> tuple[Step, ...]:
    if case.driver.install or facts.system.os_id != "ubuntu":
        return _by_deploy(case, "driver.branch", _SUCH_AS)
    return on(host.name, "apt-get install -y ubuntu-drivers-common && "
              "ubuntu-drivers install --gpgpu")  # fmt: skip


def _by_deploy(case: Case, key: str, value: str) -> tuple[Step, ...]:
    """NVIDIA's own packages, which every system has: the deploy installs them where it is told to.

    Names of a distribution's packages heal on that distribution alone.
    """
    if case.driver.install:
        return case.run_deploy()
    edit = by_hand(f'In {case.description}, driver.install: true and {key}: "{value}"')
    return (*edit, *case.run_deploy())


def next_kernel(case: Case) -> Iterator[Finding]:
    """The kernel of the next boot has the driver's module too: DKMS fails without a word."""
    for host, facts in _nvidia(case):
        kernels = facts.gpus.kernels
        newest = max(kernels, key=_version, default="")
        running = facts.system.kernel
        if newest and not kernels[newest] and newest != running and kernels.get(running):
            yield Finding(
                "gpu.next-kernel", "gpu", host.name,
                expected=f"the NVIDIA module for {newest}, which the next boot starts",
                found=f"none; there is one for {running}, which runs now",
                evidence=f"find /lib/modules/{newest} -name 'nvidia.ko*': nothing",
                fix=on(host.name, f"apt-get install -y linux-headers-{newest} && "
                       f"dkms autoinstall -k {newest}"),
                severity="warning",
            )  # fmt: skip


def _version(kernel: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", kernel)]


def _library(facts: HostFacts) -> str:
    names = ("libnvidia-compute-", "libnvidia-common-", "nvidia-utils-", "libcuda1")
    found = [v for n, v in facts.gpus.packages.items() if n.startswith(names)]
    return found[0] if found else ""


def _nvidia(case: Case) -> Iterator[tuple[HostPlan, HostFacts]]:
    if case.plan.accelerator == "nvidia":
        yield from case.seen()


def cards(case: Case) -> Iterator[Finding]:
    """As many cards as planned, of the planned kind, all the same."""
    models: dict[str, str] = {}
    for host, facts in _nvidia(case):
        found = facts.gpus.cards
        if facts.gpus.error:
            continue
        if len(found) < host.gpus:
            yield Finding(
                "gpu.count", "gpu", host.name,
                expected=f"{host.gpus} GPUs",
                found=f"{len(found)}: one fell off the bus, or the description is wrong",
                evidence="; ".join(f"{card.index} {card.name} {card.bus}" for card in found),
                fix=on(host.name, "systemctl reboot"),
            )  # fmt: skip
        names = sorted({card.name for card in found})
        models[host.name] = " and ".join(names)
        wrong = [n for n in names if case.gpu_model and not _same(case.gpu_model, n)]
        if wrong or len(names) > 1:
            yield Finding(
                "gpu.model", "gpu", host.name,
                expected=f"{case.gpu_model or 'one kind of GPU'} alone",
                found=", ".join(names),
                evidence="; ".join(f"{card.index} {card.name}" for card in found),
                fix=by_hand(f"Set gpu.model and hosts.{host.name}.gpus in {case.description} to "
                            "what is there"),
            )  # fmt: skip
    if len(set(models.values())) > 1 and not case.gpu_model:
        usual = Counter(models.values()).most_common(1)[0][0]
        for name, model in models.items():
            if model != usual:
                yield Finding(
                    "gpu.model", "gpu", name, expected=f"{usual}, as on the other hosts",
                    found=model, evidence=model,
                    fix=by_hand("Put hosts with equal GPUs into one cluster"),
                )  # fmt: skip


def _same(described: str, found: str) -> bool:
    """`A100-SXM4-80GB` is "NVIDIA A100-SXM4-80GB"."""
    words = re.split(r"[\s-]+", described.lower())
    return all(word in re.split(r"[\s-]+", found.lower()) for word in words)


def equal_drivers(case: Case) -> Iterator[Finding]:
    """One driver everywhere (https://github.com/vllm-project/vllm/issues/4114)."""
    drivers = {h.name: f.gpus.driver for h, f in _nvidia(case) if f.gpus.driver}
    if len(set(drivers.values())) < 2:
        return
    counts = Counter(drivers.values())
    usual = max(counts, key=lambda d: (counts[d], [int(p) for p in d.split(".") if p.isdigit()]))
    branch = _BRANCH.match(usual)
    for name, version in drivers.items():
        if version != usual:
            facts = case.facts[name]
            own = next(filter(None, map(_UBUNTUS.fullmatch, sorted(facts.gpus.packages))), None)
            fix: tuple[Step, ...]
            if own and branch and not case.driver.install:
                package = f"nvidia-driver-{branch[0]}{own[1]}"
                fix = on(name, f"apt-get install -y --allow-change-held-packages {package} && "
                         "systemctl reboot")  # fmt: skip
            else:
                fix = (*_to_version(case, usual), *on(name, "systemctl reboot"))
            yield Finding(
                "gpu.driver-unequal", "gpu", name,
                expected=f"driver {usual}, as on the other hosts", found=version,
                evidence=f"nvidia-smi: Driver Version: {version}",
                fix=fix,
                about=tuple(other for other in drivers if other != name),
            )  # fmt: skip


def _to_version(case: Case, version: str) -> tuple[Step, ...]:
    """That version by the deploy, which lets any of the branch be where no version is described."""
    if case.driver.install and case.driver.version != version:
        edit = by_hand(f'In {case.description}, driver.version: "{version}"')
        return (*edit, *case.run_deploy())
    return _by_deploy(case, "driver.version", version)


def runtime(case: Case) -> Iterator[Finding]:
    """Docker's way to the GPUs."""
    for host, facts in _nvidia(case):
        docker, gpus = facts.docker, facts.gpus
        works = docker.installed and not docker.error and not gpus.error
        if works and facts.deployed and "nvidia" not in docker.runtimes and not gpus.cdi:
            yield Finding(
                "gpu.runtime", "gpu", host.name,
                expected="Docker's runtime `nvidia`, or a CDI specification",
                found=f"runtimes {', '.join(docker.runtimes) or 'none'}",
                evidence=f"docker info: Runtimes: {' '.join(docker.runtimes)}",
                fix=case.run_deploy(),
            )  # fmt: skip
        if gpus.cards and "/dev/nvidia-uvm" not in gpus.devices:
            yield Finding(
                "gpu.uvm", "gpu", host.name,
                expected="/dev/nvidia-uvm, without which CUDA does not start",
                found="no such device",
                evidence=f"ls /dev: {' '.join(sorted(gpus.devices))}",
                fix=on(host.name, "nvidia-modprobe -u -c=0"),
            )  # fmt: skip
        stale = {version for version in gpus.cdi if gpus.driver and version != gpus.driver}
        if stale and "nvidia" not in docker.runtimes:
            yield Finding(
                "gpu.cdi", "gpu", host.name,
                expected=f"a CDI specification of driver {gpus.driver}",
                found=f"one of {', '.join(sorted(stale))}",
                evidence=f"libcuda.so.{sorted(stale)[0]}",
                fix=on(host.name, "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
            )  # fmt: skip


def fabric_manager(case: Case) -> Iterator[Finding]:
    """On NVSwitch machines: the fabric manager, running, of the driver's version. Without it CUDA
    ends with error 802."""
    for host, facts in _nvidia(case):
        waiting = [c.index for c in facts.gpus.cards if c.fabric and c.fabric != "Completed"]
        unit = facts.unit("nvidia-fabricmanager.service")
        name, package = next(((n, v) for n, v in sorted(facts.gpus.packages.items())
                              if n.startswith("nvidia-fabricmanager")), ("", ""))  # fmt: skip
        version = package.rpartition(":")[2]
        differs = bool(version and facts.gpus.driver) and not version.startswith(facts.gpus.driver)
        switched = any(card.fabric for card in facts.gpus.cards) or unit.load == "loaded"
        if not switched or not (waiting or differs or (unit.load == "loaded" and not unit.running)):
            continue
        found = f"GPUs {waiting} wait for it" if waiting else f"{unit.name} is {unit.active}"
        yield Finding(
            "gpu.fabric-manager", "gpu", host.name,
            expected=f"the fabric manager running, of version {facts.gpus.driver}",
            found=f"version {package}" if differs else found,
            evidence=f"{unit.name}: {unit.active}; {package}",
            fix=_fabric(case, host, facts, name if differs or unit.load != "loaded" else None),
        )  # fmt: skip


def _fabric(case: Case, host: HostPlan, facts: HostFacts, package: str | None) -> tuple[Step, ...]:
    """`package`: the installed one that is to be of another version, empty where there is none;
    None where the unit has only to be started."""
    unit, driver = "nvidia-fabricmanager.service", facts.gpus.driver
    start = f"systemctl enable --now {unit} && systemctl restart {unit}"
    if package is None:
        return on(host.name, start)
    if case.driver.install:
        return case.run_deploy()
    branch = _BRANCH.match(driver)
    if not package and facts.system.os_id == "ubuntu" and branch:
        package = f"nvidia-fabricmanager-{branch[0]}"
    if not package:
        return _by_deploy(case, "driver.version", driver)
    # The name of whoever packaged it, with the driver's branch where it has one; the revision
    # behind the version is the packager's too.
    name = re.sub(r"-\d+$", f"-{branch[0] if branch else ''}", package)
    return on(host.name, "apt-get install -y --allow-change-held-packages --allow-downgrades "
              f"'{name}={driver}-*' && {start}")  # fmt: skip


CHECKS = (driver, next_kernel, cards, equal_drivers, runtime, fabric_manager)
