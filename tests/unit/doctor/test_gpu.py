"""GPU, RDMA and DCGM: parsers on recorded outputs, checks on what they show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.doctor.cases import FIXTURES, changed, first, gpu_case, ids, sound, with_card
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.finding import BY_HAND
from vllm_cluster.facts.doctor.model import Unit
from vllm_cluster.facts.doctor.read_gpu import dcgm_diag, dcgm_log, smi
from vllm_cluster.facts.doctor.read_network import ibstat
from vllm_cluster.spec.hosts_model import Driver


@pytest.mark.parametrize(
    ("file", "driver", "name", "memory_mib"),
    [
        ("a100-sxm4-v12", "535.54.03", "NVIDIA A100-SXM4-80GB", 81920),
        ("a10g", "515.105.01", "NVIDIA A10G", 23028),
        ("tesla-t4", "515.105.01", "Tesla T4", 15360),
        ("rtx-3090-v12", "525.147.05", "NVIDIA GeForce RTX 3090", 24576),
        ("rtx-4000-sff-ada-v13", "595.84", "NVIDIA RTX 4000 SFF Ada Generation", 20475),
        ("gtx-1070-ti", "", "GeForce GTX 1070 Ti", 4096),
    ],
)
def test_cards_of_several_drivers_are_read(
    file: str, driver: str, name: str, memory_mib: int
) -> None:
    found = smi((FIXTURES / "nvidia-smi" / f"{file}.xml").read_text())
    assert found.driver == driver
    assert found.error == ""
    assert [card.name for card in found.cards] == [name]
    assert found.cards[0].memory_bytes == memory_mib * 2**20


def test_what_a_card_does_not_say_is_unknown_and_no_finding() -> None:
    assert ids(gpu_case("gtx-1070-ti", "gtx-1070-ti")) == []


def test_healthy_cards_of_a_cloud_are_no_finding_though_they_have_half_their_lanes() -> None:
    assert [i for i in ids(gpu_case("a10g", "a10g")) if i != "gpu.persistence"] == []


def test_mig_left_on_is_found_on_a_real_a100() -> None:
    case = gpu_case("a100-sxm4-v12", "a100-sxm4-v12")
    assert first(case).id == "gpu.mig"
    assert first(case).fix[0].command.startswith("nvidia-smi -i 0 -mig 0")


def test_drivers_that_differ_between_hosts() -> None:
    case = gpu_case("a10g", "rtx-3090-v12")
    found = ids(case)
    assert "gpu.driver-unequal" in found
    assert "gpu.model" in found


def test_a_card_of_another_kind_than_described() -> None:
    case = replace(gpu_case("a10g", "a10g"), gpu_model="A100-SXM4-80GB")
    assert "gpu.model" in ids(case)
    assert "gpu.model" not in ids(replace(case, gpu_model="A10G"))


def test_the_driver_was_updated_without_a_reboot() -> None:
    words = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570"
    case = gpu_case()
    gpus = replace(smi(words), loaded="550.54.15")
    case = changed(case, "node-b", gpus=gpus)
    assert first(case).id == "gpu.driver-mismatch"
    assert first(case).fix[0].command == "systemctl reboot"


def test_a_next_kernel_without_the_driver_is_told_before_the_reboot() -> None:
    case = gpu_case()
    system = replace(case.facts["node-b"].system, kernel="6.8.0-60-generic")
    module = "/lib/modules/6.8.0-60-generic/updates/dkms/nvidia.ko.zst"
    kernels = {"6.8.0-60-generic": module, "6.8.0-100-generic": ""}
    gpus = replace(case.facts["node-b"].gpus, kernels=kernels)
    found = first(changed(case, "node-b", gpus=gpus, system=system))
    assert (found.id, found.host, found.severity) == ("gpu.next-kernel", "node-b", "warning")
    assert "linux-headers-6.8.0-100-generic" in found.fix[0].command
    built = replace(gpus, kernels={**kernels, "6.8.0-100-generic": module})
    assert "gpu.next-kernel" not in ids(changed(case, "node-b", gpus=built, system=system))


def test_a_container_that_lost_its_gpus_is_restarted() -> None:
    case = gpu_case()
    docker = case.facts["node-b"].docker
    words = "Failed to initialize NVML: Unknown Error"
    inside = replace(docker.inside["ray-worker"], nvml=words)
    case = changed(case, "node-b", docker=replace(docker, inside={"ray-worker": inside}))
    assert (first(case).id, first(case).host) == ("gpu.lost", "node-b")
    assert first(case).fix[0].command == "systemctl restart --no-block ray-worker.service"


def as_on(case: Case, os_id: str) -> Case:
    """node-b with that system."""
    return changed(case, "node-b", system=replace(case.facts["node-b"].system, os_id=os_id))


def test_no_driver_at_all_is_installed_by_names_that_the_system_has() -> None:
    case = changed(gpu_case(), "node-b", gpus=smi("no nvidia-smi"))
    assert first(case).id == "gpu.driver-missing"
    edit, deploy = first(case).fix
    assert edit.on == BY_HAND
    assert edit.command == 'In inventories/prod.yaml, driver.install: true and driver.branch: "580"'
    assert deploy.command == case.deploy
    told = replace(case, driver=Driver(install=True, branch="580"))
    assert [step.command for step in first(told).fix] == [case.deploy]
    assert "ubuntu-drivers install" in first(as_on(case, "ubuntu")).fix[0].command


def unequal(**packages: str) -> Case:
    """node-b with an older driver, from these packages."""
    case = gpu_case()
    gpus = replace(case.facts["node-b"].gpus, driver="510.1.1", loaded="510.1.1",
                   packages={n.replace("_", "-"): v for n, v in packages.items()})  # fmt: skip
    return changed(case, "node-b", gpus=gpus)


def test_a_driver_that_differs_is_mended_by_the_names_that_are_there() -> None:
    ubuntu = first(unequal(nvidia_driver_510_server_open="510.1.1")).fix[0].command
    assert "--allow-change-held-packages nvidia-driver-515-server-open " in ubuntu
    for own in ("nvidia_open", "nvidia_driver"):
        found = first(unequal(**{own: "510.1.1-1"}))
        assert found.id == "gpu.driver-unequal"
        assert 'driver.version: "515.105.01"' in found.fix[0].command
        assert [step.command for step in found.fix[1:]] == [sound().deploy, "systemctl reboot"]
    told = replace(unequal(nvidia_open="510.1.1-1"), driver=Driver(install=True, branch="515"))
    assert first(told).fix[0].command == 'In inventories/prod.yaml, driver.version: "515.105.01"'
    pinned = Driver(install=True, version="515.105.01")
    assert first(replace(told, driver=pinned)).fix[0].command == told.deploy


def fabric(package: str, version: str, *, unit: bool = True) -> Case:
    """node-b with NVSwitches whose manager is not of the driver's version."""
    case = with_card(gpu_case(), "node-b", fabric="In Progress")
    packages = {package: version} if package else {}
    gpus = replace(case.facts["node-b"].gpus, packages=packages)
    name = "nvidia-fabricmanager.service"
    units = {**case.facts["node-b"].units}
    if unit:
        units[name] = Unit(name, load="loaded", active="failed")
    return changed(case, "node-b", gpus=gpus, units=units)


@pytest.mark.parametrize(
    ("package", "version", "wanted"),
    [
        ("nvidia-fabricmanager-510", "510.1.1-0ubuntu0.22.04.1", "nvidia-fabricmanager-515"),
        ("nvidia-fabricmanager", "510.1.1-1", "nvidia-fabricmanager"),
    ],
)
def test_a_fabric_manager_of_another_version_keeps_its_packagers_name(
    package: str, version: str, wanted: str
) -> None:
    found = first(fabric(package, version))
    assert found.id == "gpu.fabric-manager"
    assert f"'{wanted}=515.105.01-*' && systemctl enable" in found.fix[0].command


def test_a_fabric_manager_that_is_not_there_is_installed_and_not_only_started() -> None:
    case = fabric("", "", unit=False)
    assert 'driver.version: "515.105.01"' in first(case).fix[0].command
    ubuntu = first(as_on(case, "ubuntu")).fix[0].command
    assert "'nvidia-fabricmanager-515=515.105.01-*'" in ubuntu
    told = replace(case, driver=Driver(install=True, branch="515"))
    assert [step.command for step in first(told).fix] == [case.deploy]
    started = first(fabric("nvidia-fabricmanager", "515.105.01-1")).fix[0].command
    assert started.startswith("systemctl enable --now nvidia-fabricmanager.service")


def test_a_card_that_fell_off_the_bus() -> None:
    words = "Unable to determine the device handle for gpu 0000:18:00.0: Unknown Error"
    case = changed(gpu_case(), "node-b", gpus=smi(words))
    assert first(case).id == "gpu.driver-failing"
    assert words in first(case).evidence


@pytest.mark.parametrize(
    ("changes", "identity"),
    [
        ({"rows_failed": True}, "gpu.rows-failed"),
        ({"rows_pending": True}, "gpu.rows-pending"),
        ({"pages_pending": True}, "gpu.rows-pending"),
        ({"uncorrected_volatile": 3}, "gpu.memory-errors"),
        ({"compute_mode": "Exclusive_Process"}, "gpu.compute-mode"),
        ({"fabric": "In Progress"}, "gpu.fabric-manager"),
    ],
)
def test_a_sick_card_is_named(changes: dict[str, object], identity: str) -> None:
    assert first(with_card(gpu_case(), "node-b", **changes)).id == identity


def test_memory_held_while_vllm_does_not_run() -> None:
    case = gpu_case()
    docker = replace(case.facts["node-b"].docker, inside={}, containers={})
    case = changed(case, "node-b", docker=docker)
    case = with_card(case, "node-b", used_bytes=9 * 2**30, processes=((44, "python"),))
    assert "gpu.occupied" in ids(case)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("1.5 h kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=0, GPU has fallen off the bus.", True),
        ("1.5 h kernel: NVRM: Xid (PCI:0000:18:00): 31, pid=9, name=python, MMU Fault", False),
    ],
)
def test_xid_errors_of_the_hardware_are_told_from_those_of_programs(
    line: str, *, found: bool
) -> None:
    case = changed(gpu_case(), "node-b", kernel_log=(line,))
    assert ("gpu.xid" in ids(case)) is found


REMAPPED = ("1.5 h kernel: NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked "
            "for remapping, reset gpu to activate.")  # fmt: skip
CORRECTED = "1.6 h kernel: NVRM: Xid (PCI:0000:10:1c): 92, pid=1896, High single-bit ECC error rate"
OFF = "1.4 h kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=0, GPU has fallen off the bus."


@pytest.mark.parametrize("line", [REMAPPED, CORRECTED])
def test_what_the_driver_only_notes_is_a_warning_and_no_reboot(line: str) -> None:
    case = changed(gpu_case(), "node-b", kernel_log=(line,))
    found = next(f for f in findings(case) if f.id == "gpu.xid")
    assert found.severity == "warning"
    assert found.fix[0].on == BY_HAND
    off = first(changed(gpu_case(), "node-b", kernel_log=(OFF, line)))
    assert off.severity == "failing"
    assert off.found == "Xid 79 on PCI:0000:18:00: the GPU has fallen off the bus, and 1 more"


def test_a_row_that_waits_for_a_reset_makes_it_a_failure() -> None:
    case = with_card(changed(gpu_case(), "node-b", kernel_log=(REMAPPED,)), "node-b",
                     rows_pending=True)  # fmt: skip
    found = [f for f in findings(case) if f.id == "gpu.xid"]
    assert [f.severity for f in found] == ["failing"]


def test_driver_packages_that_an_update_may_replace() -> None:
    case = gpu_case()
    packages = {"nvidia-driver-580-server": "580.1", "libnvidia-compute-580-server": "580.1"}
    gpus = replace(case.facts["node-b"].gpus, packages=packages,
                   held=frozenset({"nvidia-driver-580-server"}))  # fmt: skip
    unit = Unit("unattended-upgrades.service", load="loaded", active="active")
    units = {**case.facts["node-b"].units, unit.name: unit}
    case = changed(case, "node-b", gpus=gpus, units=units)
    found = next(f for f in [first(case)] if f.severity == "warning")
    assert "gpu.driver-not-held" in ids(case)
    assert found.severity == "warning"


def test_docker_that_cannot_hand_out_gpus() -> None:
    case = gpu_case()
    docker = replace(case.facts["node-b"].docker, runtimes=("runc",))
    assert first(changed(case, "node-b", docker=docker)).id == "gpu.runtime"


@pytest.mark.parametrize(
    ("file", "states"),
    [
        ("down", [("mlx5_7/ports/1", "DOWN", "LinkUp", 200.0)]),
        ("polling", [("mlx5_10/ports/1", "DOWN", "Polling", 10.0)]),
        ("roce", [("mlx5_0/ports/1", "ACTIVE", "LinkUp", 200.0),
                  ("mlx5_10/ports/1", "DOWN", "Disabled", 0.0)]),
    ],
)  # fmt: skip
def test_rdma_ports_as_ibstat_shows_them(
    file: str, states: list[tuple[str, str, str, float]]
) -> None:
    found = ibstat((FIXTURES / "ibstat" / f"{file}.txt").read_text())
    assert [(p.name, p.state, p.physical, p.rate_gbit) for p in found] == states


def test_a_port_that_carries_nothing_is_a_warning_with_its_reason() -> None:
    ports = ibstat((FIXTURES / "ibstat" / "down.txt").read_text())
    finding = first(changed(gpu_case("gtx-1070-ti", "gtx-1070-ti"), "node-b", rdma=ports))
    assert (finding.id, finding.severity) == ("network.rdma-port", "warning")
    assert "switched off" in finding.found


def test_a_diagnosis_that_passes_says_nothing() -> None:
    for name in ("diag-3", "diag-4"):
        assert dcgm_diag((FIXTURES / "dcgmi" / f"{name}.txt").read_text()) == ()


def test_a_diagnosis_that_fails_is_told_with_its_test() -> None:
    text = (FIXTURES / "dcgmi" / "diag-4.txt").read_text()
    text = text.replace(
        "| memory                    | Pass ", "| memory                    | Fail "
    )
    assert dcgm_diag(text) == ("FAILURE memory: Fail",)


def test_what_dcgm_logs_of_its_own_checks() -> None:
    lines = tuple((FIXTURES / "dcgmi" / "health-log.txt").read_text().splitlines())
    found = dcgm_log(lines)
    assert len(found) == 1
    assert found[0].startswith("WARNING Thermal: Detected clocks event")
