"""A run that holds its lock comes first, and no fix fights it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path

import pytest

from tests.unit.doctor.cases import changed, first, ids, sound
from tests.unit.doctor.test_bundle import examination
from tests.unit.doctor.test_command import bad, silent
from vllm_cluster.doctor import report, state
from vllm_cluster.doctor.case import Case
from vllm_cluster.doctor.causes import ordered
from vllm_cluster.doctor.checks import findings
from vllm_cluster.doctor.finding import HERE, Finding, on
from vllm_cluster.facts.doctor.model import Container, Disk, Owner
from vllm_cluster.facts.doctor.read_host import run
from vllm_cluster.facts.doctor.script import MARK
from vllm_cluster.facts.doctor.sections import Sections
from vllm_cluster.plan.run_lock import Bearer, Busy

ALICE = Bearer("1", "alice", "laptop-7", "cluster.py")
BUSY = Busy(ALICE, 1795971900, 66)
LINE = '1795971900 {"run": "1", "operator": "alice", "machine": "laptop-7", "what": "cluster.py"}'


def run_on(case: Case, *hosts: str, busy: Busy = BUSY) -> Case:
    """`case` while a run holds the lock on these hosts."""
    for host in hosts or tuple(case.facts):
        case = changed(case, host, run=busy)
    return case


def commands(case: Case) -> list[str]:
    """Every command that a person could run now, by any finding, shown or not."""
    rows = ordered(findings(case))
    return [step.command for finding, _ in rows for step in finding.fix if step.on != "by hand"]


def test_a_run_is_first_with_who_what_and_since_when() -> None:
    found = first(run_on(bad()))
    assert (found.id, found.host, found.about) == ("host.run-under-way", "node-a", ("node-b",))
    assert found.found.startswith("alice on laptop-7 runs cluster.py since 2026-11-29 17:05:00 UTC")
    assert found.fix[0].command.startswith("Wait until it has ended, or end it with Ctrl-C where")


def test_what_a_run_may_be_causing_stands_under_it_without_a_fix_to_do_now() -> None:
    check = Container("vllm-cluster-check", image=sound().facts["node-b"].docker.image_id,
                      running=True)  # fmt: skip
    docker = sound().facts["node-b"].docker
    docker = replace(docker, containers={**docker.containers, check.name: check})
    case = changed(sound(), "node-b", docker=docker)
    head = case.facts["node-a"]
    stopped = {name: replace(head.unit(name), active="inactive", sub="dead")
               for name in ("vllm.service", "ray-head.service")}  # fmt: skip
    case = changed(case, "node-a", units={**head.units, **stopped})
    assert any("docker rm --force vllm-cluster-check" in each for each in commands(case))
    rows = ordered(findings(run_on(case)))
    assert {f.id for f, why in rows if why is None} == {"host.run-under-way"}
    assert {"docker.leftover", "ray.head-down", "vllm.down"} <= {f.id for f, _ in rows}
    assert {why.id for _, why in rows if why is not None} == {"host.run-under-way"}
    assert commands(run_on(case)) == []


def test_what_no_run_causes_is_told_beside_it_and_a_deploy_is_for_afterwards() -> None:
    full = Disk("/", "/", "ext4", 100 << 30, 0, 1000, 500)
    case = changed(bad(), "node-b", disks={**bad().facts["node-b"].disks, "/": full})
    rows = ordered(findings(run_on(case)))
    causes = {finding.id: finding for finding, why in rows if why is None}
    assert list(causes) == ["host.run-under-way", "host.disk-full", "network.name"]
    assert causes["host.disk-full"].fix[0].on == "node-b"
    after, deploy = causes["network.name"].fix
    assert after.command.startswith("When the run has ended")
    assert deploy.on == HERE


def test_a_run_on_one_host_explains_nothing_of_another_host_alone() -> None:
    docker = sound().facts["node-b"].docker
    old = Container("old", image=docker.image_id, running=True)
    docker = replace(docker, containers={**docker.containers, "old": old})
    case = run_on(changed(sound(), "node-b", docker=docker), "node-a")
    rows = ordered(findings(case))
    assert [(f.id, why) for f, why in rows] == [
        ("host.run-under-way", None), ("docker.leftover", None)
    ]  # fmt: skip
    assert rows[1][0].fix == on("node-b", "docker rm --force old")


def test_an_outage_while_weights_are_read_has_its_fix_and_what_waits_for_them_waits() -> None:
    head = sound().facts["node-a"]
    failed = replace(head.unit("vllm.service"), active="failed", sub="failed")
    containers = {n: each for n, each in head.docker.containers.items() if n != "vllm"}
    model = replace(sound().facts["node-b"].model, present=False)
    case = changed(sound(), "node-a", units={**head.units, failed.name: failed},
                   docker=replace(head.docker, containers=containers))  # fmt: skip
    case = changed(case, "node-b", model=model)
    start = "systemctl reset-failed vllm.service; systemctl start --no-block vllm.service"
    for what, fixes in {"vllm-cluster weights verify": [start], "vllm-cluster down": []}.items():
        busy = replace(BUSY, bearer=replace(ALICE, what=what))
        assert commands(run_on(case, busy=busy)) == fixes
    waits = replace(failed, active="activating", sub="start-pre")
    case = changed(case, "node-a", units={**head.units, waits.name: waits})
    busy = replace(BUSY, bearer=replace(ALICE, what="vllm-cluster weights place"))
    rows = ordered(findings(run_on(case, busy=busy)))
    assert {f.id: why.id for f, why in rows if why} == dict.fromkeys(
        ("model.missing", "vllm.waiting"), "host.run-under-way"
    )


def taken(case: Case, host: str, name: str) -> Case:
    """`case` with a process of a host's own on the port of that name."""
    port = next(use.first for use in case.plan.ports if use.name.startswith(name))
    owner = Owner(port, 4255, "python3", ours=False, line=f"LISTEN *:{port} pid=4255")
    return changed(case, host, owners=(*case.facts[host].owners, owner))


@pytest.mark.parametrize("what", ["cluster.py", "vllm-cluster weights place"])
@pytest.mark.parametrize("name", ["images", "weights"])
def test_what_spreads_images_and_weights_is_not_killed_during_the_run(name: str, what: str) -> None:
    case = taken(sound(), "node-b", name)
    assert commands(case) == ["kill 4255"]
    busy = replace(BUSY, bearer=replace(ALICE, what=what))
    rows = ordered(findings(run_on(case, busy=busy)))
    assert [(f.id, why.id if why else "") for f, why in rows] == [
        ("host.run-under-way", ""), ("host.port-taken", "host.run-under-way"),
    ]  # fmt: skip
    assert commands(run_on(case, busy=busy)) == []


def test_another_port_that_is_taken_is_no_runs_doing() -> None:
    assert "kill 4255" in commands(run_on(taken(sound(), "node-a", "ray gcs")))


def test_a_secret_that_a_run_is_about_to_write_is_not_missing_yet() -> None:
    case = changed(sound(), "node-b", secrets={})
    assert first(case).id == "security.secret-missing"
    rows = ordered(findings(run_on(case)))
    assert [f.id for f, why in rows if why is None] == ["host.run-under-way"]
    assert "security.secret-missing" in [f.id for f, _ in rows]


def test_a_deploy_is_for_after_a_run_of_weights_too() -> None:
    busy = replace(BUSY, bearer=replace(ALICE, what="vllm-cluster weights verify"))
    rows = ordered(findings(run_on(bad(), busy=busy)))
    fixes = {finding.id: finding.fix for finding, _ in rows}
    assert fixes["network.name"][0].command.startswith("When the run has ended")
    assert fixes["network.name"][1].on == HERE


def test_a_run_leaves_no_host_open_and_an_open_host_is_closed_during_it() -> None:
    fix = on("node-a", "systemctl restart vllm-cluster-firewall.service")
    run = first(run_on(sound()))
    lacks = Finding("security.firewall", "security", "node-a", "closed", "open", fix=fix)
    assert ordered([run, lacks])[1] == (lacks, None)


@pytest.mark.parametrize(
    ("command", "fights"),
    [
        ("systemctl restart --no-block ray-worker.service", True),
        ("systemctl reset-failed docker.service; systemctl enable --now docker.service", True),
        ("systemctl stop vllm", True),
        ("docker stop ray-head", True),
        ("apt-get install --yes nvidia-driver; systemctl reboot", True),
        ("docker stop grafana", False),
        ("systemctl restart nginx.service; echo docker", False),
    ],
)
def test_what_a_run_stops_and_starts_itself_is_for_afterwards(
    command: str, *, fights: bool
) -> None:
    taken = Finding("host.port-taken", "host", "node-b", "free", "taken", fix=on("node-b", command))
    (_, (found, _)) = ordered([first(run_on(sound())), taken])
    assert (len(found.fix) == 2) is fights


def test_one_that_is_just_beginning_is_part_of_the_run_that_is_known() -> None:
    beginning = Busy(None, 0, 0)
    case = run_on(run_on(sound()), "node-b", busy=beginning)
    assert ids(case) == ["host.run-under-way"]
    assert first(case).about == ("node-b",)
    assert first(run_on(sound(), busy=beginning)).found == "another run is just beginning"


def test_a_host_that_takes_a_switch_back_names_its_own_log() -> None:
    own = Bearer("", "the host", "node-b", "the way back of a switch that nobody finished")
    found = first(run_on(sound(), "node-b", busy=Busy(own, 1795971900, 66)))
    assert "journalctl --unit=vllm-cluster-switch-back" in found.fix[0].command


def test_the_exit_code_is_that_of_a_start_and_the_last_lines_name_the_run() -> None:
    found = examination(run_on(sound()))
    assert found.exit_code == 1
    text = report.text(found, report.select(found, (), ()), everything=False)
    assert text.startswith("FAIL  node-a  host  host.run-under-way\n")
    assert text.splitlines()[-1].startswith("lab: host plane on node-a; 2 of 2")
    last = state.text(found).splitlines()[-1]
    assert last.startswith("host plane, node-a: alice on laptop-7 runs cluster.py since ")
    assert examination(silent()).exit_code == 2


def test_without_a_run_every_fix_stays_as_it_is() -> None:
    rows: list[Finding] = [finding for finding, _ in ordered(findings(bad()))]
    assert set(rows) == set(findings(bad()))


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """As a run holds it."""
    holder = f'exec 9<>"{lock}"; flock 9; echo held; read -r _'
    with subprocess.Popen(
        ["bash", "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate("\n")


def looked(lock: Path) -> Busy | None:
    """What a look finds."""
    parts = resources("vllm_cluster.facts.doctor") / "gather"
    shell = "".join((parts / name).read_text() for name in ("00-frame.sh", "10-host.sh"))
    shell += f"\nmark={MARK}; run_lock={lock}; run_state 0; begin end\n"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return run(Sections(done.stdout), 1795971966.4)


def test_a_lock_that_is_held_is_seen_and_not_that_of_a_run_that_died(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert looked(lock) is None
    assert not lock.exists()
    lock.write_text(f"{LINE}\n")
    assert looked(lock) is None
    with held(lock):
        assert looked(lock) == BUSY
        assert subprocess.run(["flock", "--nonblock", lock, "true"], check=False).returncode == 1
    assert looked(lock) is None


def test_another_look_is_no_run(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text(f"{LINE}\n")
    with lock.open() as other:
        subprocess.run(["flock", "--shared", str(other.fileno())], pass_fds=[other.fileno()],
                       check=True)  # fmt: skip
        assert looked(lock) is None


@pytest.mark.parametrize(
    "text", ["", "held", "held 17 {", 'held 17 {"new": "fields"}', "held x {}"]
)
def test_words_that_are_not_read_still_say_that_it_is_held(text: str) -> None:
    found = run(Sections(f"{MARK} run\n{text}\n{MARK} run\n{MARK} end\n"), 1795971966.4)
    assert (found is not None) == bool(text)
    assert found is None or found.bearer is None


def test_a_run_that_began_during_the_look_counts() -> None:
    text = f"{MARK} run\n{MARK} system\n{MARK} run\nheld {LINE}\n{MARK} end\n"
    assert run(Sections(text), 1795971966.4) == BUSY
