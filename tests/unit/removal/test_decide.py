"""What goes from a host and what stays, decided from its record."""

from __future__ import annotations

from dataclasses import replace

from vllm_cluster.plan.owned import Record, parse
from vllm_cluster.removal.action import Removal
from vllm_cluster.removal.decide import Options, decide
from vllm_cluster.removal.look import Found

UNITS = "/etc/systemd/system"
WEIGHTS = "/var/lib/vllm-cluster/models"
MODEL = f"{WEIGHTS}/tiny"
LATE_DISK = rf"{UNITS}/dev-disk-by\x2duuid-1.device.d/vllm-cluster.conf"
JOURNAL = f"""
file\t{UNITS}/ray-head.service\tabsent
wrote\t{UNITS}/ray-head.service\taa
wrote\t{UNITS}/ray-head.service\tbb
file\t{UNITS}/vllm.service\tabsent
wrote\t{UNITS}/vllm.service\tcc
file\t{UNITS}/watch.timer\tabsent
wrote\t{UNITS}/watch.timer\tdd
file\t{UNITS}/watch@.service\tabsent
file\t{UNITS}/srv-nvme.mount\tabsent
file\t{LATE_DISK}\tabsent
file\t/etc/x.conf\t1234.before
wrote\t/etc/x.conf\tee
unit\tnfs-server.service\tdisabled inactive
unit\tdocker.service\tenabled active
sysctl\tvm.swappiness\t60
set\tvm.swappiness\t10
package\tdocker.io\tpurge
package\tiperf3\tpurge
weights\t{MODEL}\tabsent
disk\t/dev/sdb\text4 uuid
""".strip().splitlines()
FOUND = Found(
    record=parse(JOURNAL),
    now={
        f"{UNITS}/ray-head.service": "bb", f"{UNITS}/vllm.service": "cc",
        f"{UNITS}/watch@.service": "gg", f"{UNITS}/watch.timer": "dd",
        f"{UNITS}/srv-nvme.mount": "ff", LATE_DISK: "hh", "/etc/x.conf": "ee",
    },
    before={"1234.before": "99"},
    weights_bytes={MODEL: 2**30},
    installed=("docker.io", "iperf3"),
    docker=True,
    table=True,
)  # fmt: skip


def decided(found: Found = FOUND, **options: bool) -> Removal:
    return decide(found, WEIGHTS, Options(**options))


def whats(removal: Removal, verb: str) -> list[str]:
    return [action.what for action in removal.actions if action.verb == verb]


def kept(removal: Removal) -> str:
    return "\n".join(f"{each.what}: {each.why}" for each in removal.kept)


def test_units_stop_in_order_and_mounts_go_later() -> None:
    stops = [a.what for a in decided().actions if a.phase == "stop"]
    assert stops == ["watch.timer", "watch@.service", "vllm.service", "ray-head.service"]
    template = next(a.shell for a in decided().actions if a.what == "watch@.service")
    assert template.startswith("systemctl --quiet stop 'watch@*.service' && ")
    assert whats(decided(), "unmounts") == ["srv-nvme.mount"]
    assert LATE_DISK in whats(decided(), "removes")


def test_a_file_of_before_comes_back_and_one_that_is_back_is_let_be() -> None:
    assert "/etc/x.conf" in whats(decided(), "puts back")
    back = replace(FOUND, now={**FOUND.now, "/etc/x.conf": "99"})
    assert "/etc/x.conf" not in whats(decided(back), "puts back")
    assert "/etc/x.conf" not in kept(decided(back))


def test_a_file_that_somebody_changed_stays_and_its_unit_ends() -> None:
    edited = replace(FOUND, now={**FOUND.now, f"{UNITS}/vllm.service": "zz"})
    removal = decided(edited)
    assert "vllm.service" in whats(removal, "stops")
    assert f"{UNITS}/vllm.service" not in whats(removal, "removes")
    assert f"{UNITS}/vllm.service: changed since" in kept(removal)


def test_weights_and_packages_stay_unless_asked_and_are_remembered() -> None:
    removal = decided()
    assert "--no-keep-weights" in kept(removal)
    assert "--packages removes them" in kept(removal)
    assert removal.remains == ("packages", "weights")
    whole = decided(packages=True, keep_weights=False)
    assert whole.remains == ()
    assert any("2 packages" in what for what in whats(whole, "removes"))


def test_docker_with_something_of_somebody_else_stays() -> None:
    removal = decided(replace(FOUND, foreign=("container theirs",)), packages=True)
    assert "container theirs" in kept(removal)
    assert "1 packages: iperf3" in whats(removal, "removes")


def test_a_units_state_of_before_comes_back_only_where_we_changed_it() -> None:
    assert "nfs-server.service (disabled, inactive)" in whats(decided(), "puts back")
    assert not any("docker.service" in what for what in whats(decided(), "puts back"))


def test_no_file_system_is_touched() -> None:
    removal = decided(packages=True, keep_weights=False)
    assert "no file system is touched" in kept(removal)
    assert not any("mkfs" in a.shell or "wipefs" in a.shell for a in removal.actions)


def test_where_nothing_is_recorded_nothing_is_done() -> None:
    assert decide(Found(Record()), WEIGHTS, Options()) == Removal((), (), ())


def test_a_last_line_that_a_power_cut_left_in_half_is_left_out() -> None:
    assert parse(["file\t/a\tabsent", "file\t/b"]).first("file") == {"/a": "absent"}
