"""A start of vLLM that Ray keeps from its end is ended, and the next has a Ray session afresh."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "templates/usr/local/lib/vllm-cluster"


class Ray:
    """What Ray's state API lists. A node is an address and how often Ray began there."""

    def __init__(self) -> None:
        self.nodes = {"10.77.0.11 1": "ALIVE", "10.77.0.12 1": "ALIVE"}
        self.ranks: dict[str, str] = {}
        self.jobs: dict[str, str] = {}
        self.placements: list[str] = []

    def rows(self, url: str) -> list[dict[str, Any]]:
        if "placement_groups" in url:
            return [{"state": state} for state in self.placements]
        if "actors" in url:
            return [
                {"actor_id": actor, "class_name": kind, "node_id": node, "state": self.nodes[node]}
                for kind, actors in (("RayWorkerProc", self.ranks), ("JobSupervisor", self.jobs))
                for actor, node in actors.items()
            ]
        return [
            {"node_id": node, "node_ip": node.split()[0], "start_time_ms": int(node.split()[1]),
             "state": state, "resources_total": {"GPU": 1.0}}
            for node, state in self.nodes.items()
        ]  # fmt: skip


@pytest.fixture
def ray(probe: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    monkeypatch.setattr(probe, "rows", made.rows)
    return made


def test_a_start_with_all_its_hosts_and_ranks_goes_on(probe: ModuleType, ray: Ray) -> None:
    group = probe.Group()
    ray.nodes["10.77.0.13 1"] = "DEAD"  # of a session before
    for now, placements in ((0, []), (3, ["PENDING"]), (6, ["CREATED"]), (900, ["CREATED"])):
        ray.placements = placements
        assert group.look(now) == ""


def test_a_start_that_loses_a_rank_with_its_host_is_in_vain(probe: ModuleType, ray: Ray) -> None:
    group = probe.Group()
    assert group.look(0) == ""
    ray.ranks = {"rank 0": "10.77.0.11 1", "rank 1": "10.77.0.12 1"}
    assert group.look(3) == ""
    # Ray there began anew: the GPUs are all there, and the rank is not.
    ray.nodes |= {"10.77.0.12 1": "DEAD", "10.77.0.12 2": "ALIVE"}
    assert group.look(6) == "", "one answer may be of a moment ago"
    assert group.look(9) == "10.77.0.12 left Ray while vLLM started"


def test_a_host_that_left_with_nothing_but_somebodys_job_costs_no_start(
    probe: ModuleType, ray: Ray
) -> None:
    group = probe.Group()
    assert group.look(0) == ""
    ray.jobs = {"job": "10.77.0.12 1"}
    assert group.look(3) == ""
    ray.nodes |= {"10.77.0.12 1": "DEAD", "10.77.0.12 2": "ALIVE"}
    assert [group.look(now) for now in (6, 9, 12)] == ["", "", ""]


def test_a_raylet_of_before_that_ray_only_now_sees_to_be_dead_matters_not(
    probe: ModuleType, ray: Ray
) -> None:
    ray.ranks = {"former 0": "10.77.0.11 1", "former 1": "10.77.0.12 1"}
    group = probe.Group()
    assert group.look(0) == ""
    ray.nodes["10.77.0.12 1"] = "DEAD"
    assert [group.look(now) for now in (3, 6, 9)] == ["", "", ""], "another one may come"
    ray.nodes["10.77.0.12 2"] = "ALIVE"
    ray.ranks = {"rank 0": "10.77.0.11 1", "rank 1": "10.77.0.12 2"}
    assert [group.look(now) for now in (12, 60, 600)] == ["", "", ""]


def test_a_start_that_is_short_of_gpus_is_in_vain(probe: ModuleType, ray: Ray) -> None:
    """All were there when it began: `wait-for-gpus` waits for them, as long as that takes."""
    group = probe.Group()
    ray.placements = ["PENDING"]
    assert group.look(0) == ""
    ray.nodes["10.77.0.12 1"] = "DEAD"
    assert [group.look(now) for now in (3, 20, 33)] == ["", "", ""]
    assert group.look(34) == "Ray has 1 of 2 GPUs for 30 s while vLLM started"


def test_ranks_that_ray_does_not_place_though_it_could_are_in_vain(
    probe: ModuleType, ray: Ray
) -> None:
    group = probe.Group()
    ray.placements = ["REMOVED", "PENDING"]
    assert [group.look(now) for now in (0, 30, 60)] == ["", "", ""]
    assert "placed no rank" in group.look(61)


def test_a_host_that_ray_lists_twice_counts_once(probe: ModuleType, ray: Ray) -> None:
    ray.nodes["10.77.0.12 2"] = "ALIVE"
    assert probe.count() == 2


def test_a_host_that_left_the_plan_stands_in_for_none_of_it(probe: ModuleType, ray: Ray) -> None:
    ray.nodes["10.77.0.13 1"] = "ALIVE"
    ray.nodes["10.77.0.12 1"] = "DEAD"
    assert probe.count() == 1
    ray.nodes["10.77.0.12 2"] = "ALIVE"
    assert probe.count() == 2


def await_completion(
    folder: Path, probe: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The script, with a Docker whose `exec` does `probe`; what Docker was asked is in `asked`."""
    docker = folder / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >>{folder}/asked\ncase $1 in exec) {probe} ;; esac\n')
    docker.chmod(0o755)
    systemctl = folder / "systemctl"
    systemctl.write_text(f"#!/bin/sh\ntest ! -e {folder}/stopped\n")
    systemctl.chmod(0o755)
    # The script's own pauses are a tenth as long.
    sleep = folder / "sleep"
    if not sleep.exists():
        sleep.write_text('#!/bin/sh\ncase $1 in 0.2) set 0.02 ;; esac\nexec /bin/sleep "$1"\n')
        sleep.chmod(0o755)
    state = folder / "units"
    state.mkdir()
    environment |= {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "UNITS_STATE": str(state),
        "INVOCATION_ID": "cafe",
    }
    done = subprocess.run(
        ["bash", SCRIPTS / "await-completion", "600"], env=environment, capture_output=True,
        text=True, check=False, timeout=30,
    )  # fmt: skip
    return done, state


def test_a_start_in_vain_is_ended_with_its_reason_and_a_session_afresh(tmp_path: Path) -> None:
    done, state = await_completion(
        tmp_path, "echo 'no completion yet'; echo '10.77.0.12 left Ray' >&2; exit 4"
    )
    assert done.returncode == 4
    assert (done.stdout, done.stderr) == ("no completion yet\n", "10.77.0.12 left Ray\n")
    assert (state / "vllm.watchdog").read_text() == "cafe start: 10.77.0.12 left Ray\n"
    assert (tmp_path / "asked").read_text().endswith("kill vllm\n")

    (state / "vllm.starts").write_text("2\n")
    assert attempt(tmp_path, "session") == "kill ray-head\n"
    assert attempt(tmp_path, "session") == "", "once"


def attempt(folder: Path, verb: str, start: str = "start", result: str = "success") -> str:
    """What `attempt VERB vllm` of the start of that name asks of Docker."""
    (folder / "asked").write_text("")
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "UNITS_STATE": str(folder / "units"),
        "INVOCATION_ID": start,
        "SERVICE_RESULT": result,
    }
    argv = ["bash", str(SCRIPTS / "attempt"), verb, "vllm"]
    subprocess.run(argv, env=environment, check=True, capture_output=True, timeout=30)
    return (folder / "asked").read_text()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of a host with a stand-in for Docker and a head that has begun."""
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n')
    docker.chmod(0o755)
    made = tmp_path / "units"
    made.mkdir()
    (made / "ray-head.invocation").write_text("first\n")
    return made


def test_every_third_start_after_two_that_ran_in_a_session_has_another(
    tmp_path: Path, state: Path
) -> None:
    asked = []
    for count in range(1, 8):
        (state / "vllm.starts").write_text(f"{count}\n")
        asked.append(attempt(tmp_path, "session"))
        if asked[-1]:
            (state / "ray-head.invocation").write_text(f"after {count}\n")
            assert attempt(tmp_path, "session") == "", "the new head makes the unit start again"
        attempt(tmp_path, "runs", f"start-{count}")
    assert asked == ["", "", "kill ray-head\n", "", "", "kill ray-head\n", ""]


@pytest.mark.parametrize("ran", [[], ["first", "second"]])
def test_a_session_in_which_not_two_starts_ran_is_kept(
    tmp_path: Path, state: Path, ran: list[str]
) -> None:
    for number, head in enumerate(ran):
        (state / "ray-head.invocation").write_text(f"{head}\n")
        attempt(tmp_path, "runs", f"start-{number}")
    (state / "vllm.starts").write_text("3\n")
    assert attempt(tmp_path, "session") == ""


@pytest.mark.parametrize(
    ("ran", "result", "left"),
    [(False, "success", "2\n"), (True, "success", "3\n"), (False, "exit-code", "3\n")],
)
def test_only_a_start_that_was_stopped_before_its_container_ran_is_not_counted(
    tmp_path: Path, state: Path, *, ran: bool, result: str, left: str
) -> None:
    (state / "vllm.starts").write_text("3\n")
    attempt(tmp_path, "runs", "the last one")
    if ran:
        attempt(tmp_path, "runs")
    attempt(tmp_path, "withdrawn", result=result)
    assert (state / "vllm.starts").read_text() == left


def test_a_stop_after_the_unit_held_has_nothing_to_take_back(tmp_path: Path, state: Path) -> None:
    attempt(tmp_path, "withdrawn")
    assert not (state / "vllm.starts").exists()


def test_a_start_that_takes_too_long_is_ended_and_keeps_its_session(tmp_path: Path) -> None:
    done, state = await_completion(tmp_path, "echo 'no completion within 600 s' >&2; exit 1")
    assert done.returncode == 1
    assert (tmp_path / "asked").read_text().endswith("kill vllm\n")
    assert not list(state.iterdir())


def test_a_start_that_completes_goes_on(tmp_path: Path) -> None:
    done, _ = await_completion(tmp_path, "exit 0")
    assert done.returncode == 0
    assert "kill" not in (tmp_path / "asked").read_text()


def test_a_probe_that_docker_never_ends_is_told_and_the_container_ended(tmp_path: Path) -> None:
    done, _ = await_completion(tmp_path, "exit 124")
    assert done.returncode == 124
    assert done.stderr == "nothing runs in the container: no word of the probe's end for 660 s\n"
    assert (tmp_path / "asked").read_text().endswith("kill vllm\n")


def test_a_container_that_does_not_end_is_told(tmp_path: Path) -> None:
    done, _ = await_completion(
        tmp_path, 'exit 1 ;; kill) exit 1 ;; container) if [ -n "$5" ]; then echo true; fi'
    )
    assert done.returncode == 1
    assert "a process in it hangs in the kernel; reboot the host" in done.stderr


def test_a_container_that_never_comes_is_waited_for_by_no_clock(tmp_path: Path) -> None:
    uptime = tmp_path / "uptime"
    uptime.write_text("100.00 0.00\n")
    sleep = tmp_path / "sleep"
    sleep.write_text(f"#!/bin/sh\necho '160.00 0.00' >{uptime}\n")
    sleep.chmod(0o755)
    done, _ = await_completion(tmp_path, "exit 0 ;; container) exit 1", UPTIME_FILE=str(uptime))
    assert done.returncode == 1
    assert "the container vllm was not created" in done.stderr
    assert "exec" not in (tmp_path / "asked").read_text()


def test_a_stop_while_vllm_starts_ends_its_container_at_once(tmp_path: Path) -> None:
    """systemd asks the unit's commands alone: vLLM would start, and be killed as it serves."""
    ended = f"exec sleep 3600 ;; kill) touch {tmp_path}/ended"
    ended += f" ;; wait) until [ -e {tmp_path}/ended ]; do sleep 0.2; done"
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(await_completion, tmp_path, ended)
        asked = tmp_path / "asked"
        while not asked.exists() or "exec vllm" not in asked.read_text():
            assert not run.done()
            time.sleep(0.02)
        script = f"{SCRIPTS}/await-completion"
        found = subprocess.run(
            ["pgrep", "--oldest", "--full", f"^bash {script} 600"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        began = time.monotonic()
        os.kill(int(found.stdout), signal.SIGTERM)
        done, _ = run.result()
    assert time.monotonic() - began < 10
    assert done.returncode == 143
    assert "kill vllm" in asked.read_text().splitlines()
    assert "stopped while vLLM started" in done.stderr


def test_docker_that_somebody_stopped_is_not_started_to_end_a_container(tmp_path: Path) -> None:
    done, _ = await_completion(tmp_path, f"touch {tmp_path}/stopped; exit 1")
    assert done.returncode == 1
    assert "kill" not in (tmp_path / "asked").read_text()


def test_a_probe_that_docker_leaves_hanging_ends_with_its_container(tmp_path: Path) -> None:
    """vLLM ended by itself: the next start must not wait for the limit of this one."""
    done, _ = await_completion(tmp_path, "exec sleep 3600 ;; wait) sleep 0.5 ;; container) : ")
    assert done.returncode not in (0, 4)
    assert done.stderr == "the container has ended\n"


def test_a_start_goes_on_where_docker_does_not_tell_of_the_containers_end(tmp_path: Path) -> None:
    done, _ = await_completion(
        tmp_path, 'sleep 2; exit 0 ;; wait) exit 1 ;; container) if [ -n "$5" ]; then echo true; fi'
    )
    assert done.returncode == 0
