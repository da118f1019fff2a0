"""GPUs: driver loaded and equal everywhere, cards counted, Docker able to hand them out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, by_hand, on
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.plan import HostPlan

_BRANCH = re.compile(r"^\d+")


def driver(case: Case) -> Iterator[Finding]:
    """The driver: there, loaded, its libraries of the same version as its module."""
    for host, facts in _nvidia(case):
        gpus = facts.gpus
        if gpus.error.startswith("no nvidia-smi"):
            yield Finding(
                "gpu.driver-missing", "gpu", host.name,
                expected="the NVIDIA driver", found="no nvidia-smi on this host",
                evidence="nvidia-smi: command not found",
                fix=on(host.name, "apt-get install -y ubuntu-drivers-common && "
                       "ubuntu-drivers install --gpgpu"),
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
            package = f"nvidia-driver-{branch[0]}-server" if branch else "nvidia-driver"
            yield Finding(
                "gpu.driver-unequal", "gpu", name,
                expected=f"driver {usual}, as on the other hosts", found=version,
                evidence=f"nvidia-smi: Driver Version: {version}",
                fix=on(name, f"apt-get install -y --allow-change-held-packages {package} && "
                       "systemctl reboot"),
                about=tuple(other for other in drivers if other != name),
            )  # fmt: skip


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
        package = next((v for n, v in facts.gpus.packages.items()
                        if n.startswith("nvidia-fabricmanager")), "")  # fmt: skip
        differs = bool(package and facts.gpus.driver) and not package.startswith(facts.gpus.driver)
        switched = any(card.fabric for card in facts.gpus.cards) or unit.load == "loaded"
        if not switched or not (waiting or differs or (unit.load == "loaded" and not unit.running)):
            continue
        found = f"GPUs {waiting} wait for it" if waiting else f"{unit.name} is {unit.active}"
        fix = f"systemctl enable --now {unit.name} && systemctl restart {unit.name}"
        if differs:
            found = f"version {package}"
            branch = _BRANCH.match(facts.gpus.driver)
            name = f"nvidia-fabricmanager-{branch[0] if branch else ''}={facts.gpus.driver}-1"
            fix = f"apt-get install -y --allow-change-held-packages {name} && {fix}"
        yield Finding(
            "gpu.fabric-manager", "gpu", host.name,
            expected=f"the fabric manager running, of version {facts.gpus.driver}", found=found,
            evidence=f"{unit.name}: {unit.active}; {package}", fix=on(host.name, fix),
        )  # fmt: skip


CHECKS = (driver, next_kernel, cards, equal_drivers, runtime, fabric_manager)
