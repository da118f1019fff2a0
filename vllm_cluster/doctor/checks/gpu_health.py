"""GPUs' health and settings: memory errors, Xid, MIG, links, heat, strangers on the cards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.finding import Finding, by_hand, on
from vllm_cluster.facts.doctor.gpu_model import Gpu
from vllm_cluster.facts.doctor.model import HostFacts
from vllm_cluster.plan import HostPlan

# Xid numbers that name the hardware or the driver, not the program; 13, 31, 43 and 45 are mostly
# the application's (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
XIDS = {
    48: "uncorrectable memory error", 63: "memory row remapped", 64: "row remapping failed",
    74: "NVLink error", 79: "the GPU has fallen off the bus", 92: "many corrected memory errors",
    94: "contained memory error", 95: "uncontained memory error", 119: "GSP firmware time-out",
    120: "GSP firmware error", 154: "the GPU asks for a recovery action",
}  # fmt: skip
# Bookkeeping: a bad part was taken note of with success, which running work does not feel, and many
# errors that ECC has corrected (NVIDIA, "Dynamic Page Retirement", Visibility, and NVML,
# nvmlDeviceGetRemappedRows; 92 is "high single-bit ECC error rate"). What is pending or failed of
# it the card says itself.
_NOTED = {63, 92}
_XID = re.compile(r"NVRM: Xid \(([^)]+)\): (\d+)")


def _cards(case: Case) -> Iterator[tuple[HostPlan, HostFacts, Gpu]]:
    if case.plan.accelerator != "nvidia":
        return
    for host, facts in case.seen():
        for card in facts.gpus.cards:
            yield host, facts, card


def errors(case: Case) -> Iterator[Finding]:
    """Memory that is failing, as ECC counts it."""
    for host, _, card in _cards(case):
        name = f"GPU {card.index} of {host.name}"
        if card.rows_failed:
            yield Finding(
                "gpu.rows-failed", "gpu", host.name,
                expected=f"sound memory in {name}",
                found="row remapping failed: no spare rows are left",
                evidence=f"{card.uuid}: remapped_row_failure Yes",
                fix=by_hand(f"Have {name} ({card.uuid}) exchanged"),
            )  # fmt: skip
        elif card.rows_pending or card.pages_pending:
            yield Finding(
                "gpu.rows-pending", "gpu", host.name,
                expected=f"sound memory in {name}",
                found="a bad part is to be taken out of use at the next reset",
                evidence=f"{card.uuid}: "
                + ("remapped_row_pending Yes" if card.rows_pending else "pending retirement Yes"),
                fix=on(host.name, "systemctl reboot"),
            )  # fmt: skip
        elif card.uncorrected_volatile:
            yield Finding(
                "gpu.memory-errors", "gpu", host.name,
                expected=f"no uncorrected memory errors in {name} since the driver was loaded",
                found=f"{card.uncorrected_volatile}",
                evidence=f"{card.uuid}: volatile uncorrectable {card.uncorrected_volatile}",
                fix=on(host.name, "systemctl reboot"),
            )  # fmt: skip


def xids(case: Case) -> Iterator[Finding]:
    """Xid errors since the boot, the hardware's kind."""
    if case.plan.accelerator != "nvidia":
        return
    for host, facts in case.seen():
        found = [(m, line) for line in facts.kernel_log if (m := _XID.search(line))]
        hard = [(m, line) for m, line in found if int(m[2]) in XIDS]
        sick = any(c.rows_failed or c.rows_pending or c.pages_pending for c in facts.gpus.cards)
        failing = [(m, line) for m, line in hard if sick or int(m[2]) not in _NOTED]
        if hard:
            match, line = (failing or hard)[-1]
            yield Finding(
                "gpu.xid", "gpu", host.name,
                expected="no Xid error of the hardware since the boot",
                found=f"Xid {match[2]} on {match[1]}: {XIDS[int(match[2])]}"
                + (f", and {len(hard) - 1} more" if len(hard) > 1 else ""),
                evidence=line,
                fix=on(host.name, "systemctl reboot") if failing
                else by_hand(f"Watch {match[1]} of {host.name}; have it exchanged if they go on"),
                severity="failing" if failing else "warning",
            )  # fmt: skip


def modes(case: Case) -> Iterator[Finding]:
    """MIG off, compute mode default, persistence on."""
    told: set[str] = set()
    for host, facts, card in _cards(case):
        if card.mig:
            yield Finding(
                "gpu.mig", "gpu", host.name,
                expected=f"MIG off on GPU {card.index}: ranks need whole GPUs",
                found="on",
                evidence=f"{card.uuid}: current_mig Enabled",
                fix=on(host.name, f"nvidia-smi -i {card.index} -mig 0 && nvidia-smi --gpu-reset "
                       f"-i {card.index}"),
            )  # fmt: skip
        if card.compute_mode in {"Exclusive_Process", "Prohibited"}:
            yield Finding(
                "gpu.compute-mode", "gpu", host.name,
                expected=f"compute mode Default on GPU {card.index}",
                found=card.compute_mode,
                evidence=f"{card.uuid}: compute_mode {card.compute_mode}",
                fix=on(host.name, f"nvidia-smi -i {card.index} -c DEFAULT"),
            )  # fmt: skip
        settled = facts.system.uptime_s > _BOOT_GRACE_S
        if card.persistence is False and settled and host.name not in told:
            told.add(host.name)
            yield Finding(
                "gpu.persistence", "gpu", host.name,
                expected=f"persistence mode on GPU {card.index}",
                found="off: the driver unloads between processes, and every start is slow",
                evidence=f"{card.uuid}: persistence_mode Disabled",
                fix=on(host.name, "systemctl enable --now nvidia-persistenced.service || "
                       "nvidia-smi -pm 1"),
                severity="warning",
            )  # fmt: skip


# nvidia-persistenced reports off for a while just after a boot.
_BOOT_GRACE_S = 120


def speed(case: Case) -> Iterator[Finding]:
    """What makes a GPU slower than it is, or than its neighbours.

    Clouds give an A10G or a T4 eight of its sixteen lanes, so a link's width is compared with that
    of the other GPUs; the generation falls whenever a GPU idles.
    """
    widths = [card.link_width[0] for _, _, card in _cards(case) if card.link_width]
    usual = max(widths, key=widths.count, default=0)
    for host, _, card in _cards(case):
        if card.throttle:
            yield Finding(
                "gpu.throttled", "gpu", host.name,
                expected=f"GPU {card.index} at its own clock",
                found=f"slowed down: {', '.join(card.throttle)} at {card.temperature_c} C",
                evidence=f"{card.uuid}: {' '.join(card.throttle)} Active",
                fix=by_hand(f"Mend cooling or power of {host.name}"),
                severity="warning",
            )  # fmt: skip
        if card.link_width and card.link_width[0] < usual:
            yield Finding(
                "gpu.link", "gpu", host.name,
                expected=f"PCIe x{usual} for GPU {card.index}, as for the others",
                found=f"x{card.link_width[0]}",
                evidence=f"{card.uuid}: {card.bus} current_link_width {card.link_width[0]}x",
                fix=by_hand(f"Reseat GPU {card.index} of {host.name}, or look for a riser that "
                            "carries fewer lanes"),
                severity="warning",
            )  # fmt: skip


def strangers(case: Case) -> Iterator[Finding]:
    """Memory held on a GPU while vLLM does not run: what an engine left behind, or another user."""
    for host, facts, card in _cards(case):
        if any(name in facts.docker.inside for name in host.containers) or not card.memory_bytes:
            continue
        if facts.docker.silent:
            continue  # whether vLLM runs is not known then
        if card.used_bytes > card.memory_bytes * _USED:
            who = ", ".join(f"{pid} ({name})" for pid, name in card.processes)
            pids = " ".join(str(pid) for pid, _ in card.processes)
            yield Finding(
                "gpu.occupied", "gpu", host.name,
                expected=f"GPU {card.index} free while vLLM does not run",
                found=f"{card.used_bytes / 2**30:.1f} GiB are used by {who or 'nobody any more'}",
                evidence=f"{card.uuid}: fb_memory_usage used {card.used_bytes // 2**20} MiB",
                fix=on(host.name, f"kill {pids}" if pids
                       else f"nvidia-smi --gpu-reset -i {card.index}"),
            )  # fmt: skip


_USED = 0.05


def lost(case: Case) -> Iterator[Finding]:
    """Containers whose GPUs a daemon-reload took away: what runs goes on until it asks for one
    (https://github.com/NVIDIA/nvidia-container-toolkit/issues/48)."""
    if case.plan.accelerator != "nvidia":
        return
    for host, facts in case.deployed():
        for name, inside in facts.docker.inside.items():
            if name in host.containers and "Failed to initialize NVML" in inside.nvml:
                yield Finding(
                    "gpu.lost", "gpu", host.name,
                    expected=f"GPUs inside {name}",
                    found="it has lost them, mostly by a daemon-reload under it",
                    evidence=f"{name}: nvidia-smi -L: {inside.nvml}",
                    fix=on(host.name, f"systemctl restart --no-block {name}.service"),
                )  # fmt: skip


def updates(case: Case) -> Iterator[Finding]:
    """A driver that an unattended update may replace under a running cluster."""
    if case.plan.accelerator != "nvidia":
        return
    for host, facts in case.seen():
        if not facts.unit("unattended-upgrades.service").running:
            continue
        drivers = [n for n in facts.gpus.packages if re.match(r"(lib)?nvidia-.*\d{3}", n)]
        loose = sorted(set(drivers) - facts.gpus.held)
        if loose:
            yield Finding(
                "gpu.driver-not-held", "gpu", host.name,
                expected="driver packages held: unattended-upgrades runs here",
                found=f"{len(loose)} are not, such as {loose[0]}",
                evidence="apt-mark showhold: " + (" ".join(sorted(facts.gpus.held)) or "nothing"),
                fix=on(host.name, f"apt-mark hold {' '.join(loose)}"),
                severity="warning",
            )  # fmt: skip


def dcgm(case: Case) -> Iterator[Finding]:
    """What DCGM's background checks have found since the boot, and its diagnosis with --deep."""
    if case.plan.accelerator != "nvidia":
        return
    for host, facts in case.seen():
        if facts.gpus.dcgm:
            failing = any(words.startswith("FAILURE") for words in facts.gpus.dcgm)
            yield Finding(
                "gpu.dcgm", "gpu", host.name,
                expected="health of all GPUs, as DCGM sees it",
                found=facts.gpus.dcgm[0],
                evidence="; ".join(facts.gpus.dcgm[:3]),
                fix=by_hand(f"On {host.name}: dcgmi diag -r 2 says which part it is"),
                severity="failing" if failing else "warning",
            )  # fmt: skip


CHECKS = (errors, xids, modes, speed, strangers, lost, updates, dcgm)
