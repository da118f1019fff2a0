"""Logs boiled down: the cause, not the last line."""

from __future__ import annotations

import pytest

from vllm_cluster.doctor.first_cause import causes, first_cause

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
