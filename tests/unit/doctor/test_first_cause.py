"""Logs boiled down: the cause, not the last line."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path

import pytest

from tests.unit.doctor.cases import changed, sound
from tests.unit.doctor.test_bundle import examination
from vllm_cluster.doctor import bundle, logs
from vllm_cluster.doctor.examine import Examination
from vllm_cluster.doctor.first_cause import causes, first_cause
from vllm_cluster.facts.doctor import script
from vllm_cluster.facts.doctor.model import RayFile
from vllm_cluster.facts.doctor.read_services import ray_files
from vllm_cluster.facts.doctor.script import MARK
from vllm_cluster.facts.doctor.sections import Sections

_START = "1795971000.1 node-a docker[9]: "


@pytest.mark.parametrize(
    ("lines", "plane", "words"),
    [
        (["Waiting for creating a placement group of specs for 10 seconds",
          "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.60.0",
          "ValueError: Cannot provide a placement group requiring 2 GPUs"], "ray", "Version"),
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
          "EngineCore failed to start", "RuntimeError: Engine core initialization failed"],
         "memory", "CUDA out of memory"),
        (["vllm serve: error: unrecognized arguments: --ray-enabled", "exit 2"],
         "vllm", "unrecognized"),
        (["RuntimeError: Gloo connectFullMesh failed with timed out connecting",
          "(EngineCore pid=1) ERROR died"], "collective", "connectFullMesh"),
        (["OSError: [Errno 28] No space left on device", "RuntimeError: raylet died"],
         "host", "No space"),
        (["ray.exceptions.AuthenticationError: InvalidAuthToken", "exit 1"], "ray", "Invalid"),
        (["docker: Error response from daemon: No such image: sha256:ab"], "docker", "image"),
        (["[rank0]: NCCL WARN socketProgress: Connection closed by remote peer",
          "torch.distributed.DistBackendError: NCCL error"], "collective", "NCCL WARN"),
    ],
)  # fmt: skip
def test_the_deepest_and_earliest_sign_is_taken(lines: list[str], plane: str, words: str) -> None:
    found = causes(_START + line for line in lines)
    assert found[0].sign.plane == plane
    assert words in first_cause(_START + line for line in lines)


@pytest.mark.parametrize(
    "line",
    ["Free memory on device cuda:0 (78.1/79.3 GiB) on startup. Desired GPU memory is 0.9",
     "vllm.service: Killing process 7 (docker) with signal SIGKILL."],
)  # fmt: skip
def test_what_is_said_of_memory_and_of_a_stop_in_every_life_is_no_cause(line: str) -> None:
    assert causes([_START + line]) == []


def test_the_rank_and_host_that_spoke_are_named() -> None:
    line = "(RayWorkerProc pid=77, ip=10.77.0.12) torch.OutOfMemoryError: CUDA out of memory"
    assert causes([_START + line])[0].rank_words == "RayWorkerProc 10.77.0.12"


def test_a_log_without_a_known_sign_gives_its_last_line() -> None:
    assert first_cause([_START + "one", _START + "two", "-- No entries --"]) == "two"


def test_the_source_in_a_traceback_is_no_cause() -> None:
    lines = [
        "1.0 node-b docker[7]:     raise Exception(",
        "1.1 node-b docker[7]: (RayWorkerProc pid=7, ip=10.77.0.12)     raise RuntimeError(",
        "1.2 node-b docker[7]: Exception: The raylet ended: port 6380 is already in use",
    ]
    assert first_cause(lines).endswith("port 6380 is already in use")
    assert first_cause(lines[:1]) == "raise Exception("


# Lines in the form of Ray's own files: a raylet that killed (as in ray-project/ray, issue 34695,
# with another time), one that starts (after store_runner.cc), and vLLM's logger.
_NEWS = ("[2026-11-30 00:50:01,000 I 77 77] (raylet) store_runner.cc:49: Starting object store "
         "with directory /dev/shm, fallback /tmp/ray, and huge page support disabled")  # fmt: skip
_KILLED = ("[2026-11-30 00:51:02,798 E 329 329] (raylet) node_manager.cc:3069: 13 Workers (tasks / "
           "actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at "
           "node (ID: 28753320, IP: 10.0.10.135) over the last time period.")  # fmt: skip
_CRASHED = _KILLED.replace("13 Workers", "0 Workers").replace(", 0 Workers", ", 1 Workers")
_OOM = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 79.11 GiB")  # fmt: skip
_WORKER = "worker-0f7695fad1848c87-01000000-77.err"


def with_files(*files: RayFile, vllm: str = "failed") -> Examination:
    """The sound cluster whose vLLM has ended; node-b has these files of Ray's."""
    case = sound()
    head = case.facts["node-a"]
    unit = replace(head.units["vllm.service"], active=vllm, started_s=100.0, log=())
    rank = (
        "(RayWorkerProc pid=77, ip=10.77.0.12) rank 1 in world size 2 is assigned as DP rank 0",
    )
    units = {**head.units, unit.name: unit}
    case = changed(case, "node-a", units=units, rank_lines=rank)
    return examination(changed(case, "node-b", ray_files=files))


def test_a_cause_that_stands_only_in_a_workers_file_is_found_with_rank_host_and_plane() -> None:
    lines = (":job_id:01000000", "INFO 11-30 00:52:00 [worker.py:1] open shm is fine", _OOM)
    text = logs.text(with_files(RayFile(_WORKER, 200.0, lines)))
    assert text.startswith("first cause: GPU memory does not suffice (memory plane)\n")
    assert f"node-b, {_WORKER}, rank 1, process 77: torch.OutOfMemoryError" in text
    told = logs.to_json(with_files(RayFile(_WORKER, 200.0, lines)))["first"]
    assert (told["host"], told["plane"]) == ("node-b", "memory")


def test_what_a_raylet_says_of_workers_that_it_killed_is_a_cause_and_its_news_are_none() -> None:
    found = logs.read(with_files(RayFile("raylet.out", 200.0, (_NEWS, _KILLED))))
    cause = next(log for log in found if log.unit == "raylet.out").causes[0]
    assert cause.sign.plane == "memory"
    assert cause.time_s == 1795999862.0
    for line in (_NEWS, _CRASHED):
        found = logs.read(with_files(RayFile("raylet.out", 200.0, (line,))))
        assert [log for log in found if log.unit == "raylet.out"] == []


def test_what_ray_guesses_of_a_worker_that_is_gone_is_no_cause() -> None:
    line = ("[2026-11-30 00:51:02,798 W 61 61] (gcs_server) gcs_worker_manager.cc:56: Reporting "
            "worker exit, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits with a "
            "connection error code 2. End of file. There are some potential root causes. (1) The "
            "process is killed by SIGKILL by OOM killer due to high memory usage.")  # fmt: skip
    found = logs.read(with_files(RayFile("gcs_server.out", 200.0, (line,))))
    assert [log for log in found if log.unit == "gcs_server.out"] == []


def test_a_worker_of_vllms_life_before_is_no_cause() -> None:
    found = logs.read(with_files(RayFile(_WORKER, 99.0, (_OOM,))))
    assert [log.unit for log in found if log.unit == _WORKER] == []


def test_an_error_of_rays_own_parts_names_nothing_and_one_of_a_worker_does() -> None:
    error = "[2026-11-30 00:51:02,000 E 77 91] exporter.cc:3: RpcError: Running out of retries"
    for name, told in (("raylet.out", []), (_WORKER, [_WORKER])):
        found = logs.read(with_files(RayFile(name, 200.0, (error,))))
        assert [log.unit for log in found if log.unit == name] == told


def test_rays_files_are_read_as_the_script_prints_them() -> None:
    text = f"{MARK} ray-file 200.5 raylet.out\n {_NEWS}\n {MARK} end\n\n{MARK} ray-file 1 a b\n x\n"
    assert ray_files(Sections(text)) == (
        RayFile("raylet.out", 200.5, (_NEWS, f"{MARK} end")), RayFile("a b", 1.0, ("x",))
    )  # fmt: skip
    plan = sound().plan
    host = plan.hosts["node-a"]
    assert "ray_words=yes" in script(plan, host, salt="s", log_lines=bundle.LOG_LINES)
    assert "ray_words=no" in script(plan, host, salt="s", log_lines=40)


def test_the_script_brings_the_ends_of_files_since_the_start_and_follows_no_link(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "session_2" / "logs"
    folder.mkdir(parents=True)
    (tmp_path / "session_latest").symlink_to("/in/the/container/session_2")
    (folder / "raylet.out").write_text("x" * 30000 + "\nlast line without an end")
    (folder / "worker-a-b-7.err").write_text("of the life before\n")
    os.utime(folder / "worker-a-b-7.err", (100, 100))
    (tmp_path / "secret").write_text("sesame\n")
    (folder / "gcs_server.out").symlink_to(tmp_path / "secret")
    (folder / "unknown.txt").write_text("not asked for\n")
    parts = resources("vllm_cluster.facts.doctor") / "gather"
    shell = "".join((parts / name).read_text() for name in ("00-frame.sh", "70-ray-files.sh"))
    shell += f"\nmark={MARK}; ray_directory={tmp_path}; ray_files 1000\n"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    found = ray_files(Sections(done.stdout))
    assert [(file.name, file.lines) for file in found] == [
        ("raylet.out", ("last line without an end",))
    ]


def test_of_equal_causes_the_first_by_one_clock_is_taken() -> None:
    case = sound()
    # node-a's clock is an hour ahead, and it failed a minute before node-b.
    for host, name, ahead_s, time_s in (
        ("node-a", "vllm", 3600.0, 1795999800.0 + 3600), ("node-b", "ray-worker", 0.1, 1795999860.0)
    ):  # fmt: skip
        units = dict(case.facts[host].units)
        line = f"{time_s} {host} docker[1]: {_OOM} on {host}"
        unit = replace(units[f"{name}.service"], active="failed", log=(line,))
        case = changed(case, host, units={**units, unit.name: unit}, clock_offset_s=ahead_s)
    found = logs.read(examination(case))
    cause = logs.first(found)
    assert cause is not None
    assert cause[0].host == "node-a"
    assert cause[1].time_s == 1795999800.0 + 3600
    assert {log.host: log.ahead_s for log in found if log.causes} == {"node-a": 3600, "node-b": 0}
