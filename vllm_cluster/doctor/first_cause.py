"""The first cause in a log: known words before unknown, earlier before later."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_cluster.doctor.finding import Plane

_STAMP = re.compile(r"^(\d+\.\d+) \S+ ([^:\[]+)(?:\[\d+\])?: ?(.*)$")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RANK = re.compile(r"\((\w*Worker\w*|\w*EngineCore\w*) pid=(\d+)(?:, ip=([\d.]+))?\)")


@dataclass(frozen=True)
class Sign:
    """Words in a log that name a cause. `rank`: how deep; the lowest is taken."""

    rank: int
    plane: Plane
    pattern: str
    meaning: str


# Deepest first. What only follows from something else stands last.
SIGNS: tuple[Sign, ...] = (
    Sign(0, "host", r"No space left on device|ENOSPC", "the disk is full"),
    Sign(0, "host", r"Read-only file system", "a file system is read-only"),
    Sign(1, "docker", r"No such image|Unable to find image", "the image is not on this host"),
    Sign(1, "docker", r"invalid mount config|bind source path does not exist",
         "a file or directory that the container needs is gone"),
    Sign(1, "docker", r"Cannot connect to the Docker daemon", "Docker does not run"),
    Sign(1, "docker", r"error setting rlimit|OCI runtime create failed",
         "Docker could not make the container"),
    Sign(1, "docker", r"is already in use by container", "a container of that name exists"),
    Sign(1, "gpu", r"could not select device driver|nvidia-container-cli",
         "Docker cannot hand out GPUs"),
    Sign(1, "gpu", r"Driver/library version mismatch", "the driver was updated without a reboot"),
    Sign(1, "gpu", r"Failed to initialize NVML", "the container has lost its GPUs"),
    Sign(1, "gpu", r"fallen off the bus|CUDA error: (?:an illegal|uncorrectable|hardware)",
         "a GPU failed"),
    Sign(1, "gpu", r"system not yet initialized|error 802", "the fabric manager does not run"),
    Sign(2, "host", r"[Aa]ddress already in use|EADDRINUSE|port \d+ is already in use",
         "another process has the port"),
    Sign(2, "ray", r"Version mismatch", "Ray or Python differ between the hosts"),
    Sign(2, "ray", r"InvalidAuthToken|[Aa]uthentication ?[Ee]rror|RAY_AUTH_TOKEN",
         "the Ray token differs between the hosts, or is missing"),
    Sign(2, "vllm", r"error: (?:unrecognized arguments|argument)",
         "vLLM does not know an argument"),
    Sign(2, "model", r"does not appear to have a file named|is not a local folder|SafetensorError|"
         r"Error(?: while)? deserializing header|No such file or directory: .*safetensors|"
         r"Cannot find any model weights|incomplete metadata",
         "the model's files are missing or damaged"),
    Sign(2, "memory", r"CUDA out of memory|OutOfMemoryError|Free memory on device|"
         r"No available memory for the cache blocks", "GPU memory does not suffice"),
    Sign(2, "memory", r"oom-kill|Out of memory|exit code 137|signal 9|SIGKILL|"
         r"node running low on memory", "a process was killed, mostly for want of memory"),
    Sign(2, "memory", r"/dev/shm|shared memory segment|open shm", "/dev/shm is too small"),
    Sign(2, "memory", r"Cannot allocate memory", "memory, or locked memory, does not suffice"),
    Sign(3, "collective", r"Unable to find address for|ifaceName|No interface found|"
         r"Bootstrap : no socket interface found|unable to find interface",
         "the network card that was named does not exist"),
    Sign(3, "collective", r"connectFullMesh failed|Gloo.*(?:timed out|failed)|"
         r"NCCL WARN (?!Cuda)|ncclSystemError|ncclRemoteError|Watchdog caught collective",
         "hosts do not reach each other in NCCL or gloo"),
    Sign(3, "network", r"No route to host|Network is unreachable", "no way to the other host"),
    Sign(4, "ray", r"Unable to connect to GCS|Failed to connect to GCS|GCS has been unavailable|"
         r"waiting for the Ray head|failed to connect to ray", "the Ray head does not answer"),
    Sign(5, "ray", r"waiting for \d+ GPUs|Waiting for creating a placement group|"
         r"Cannot provide a placement group", "Ray shows fewer GPUs than planned"),
    Sign(5, "vllm", r"No available shared memory broadcast block", "a worker hangs"),
    Sign(6, "vllm", r"EngineDeadError|Engine core initialization failed|EngineCore.*failed|"
         r"RayWorkerProc.*died|died unexpectedly", "an engine process died"),
    Sign(7, "vllm", r"\b(?:\w+Error|\w*Exception)\b(?:\(|:)|^Error\b|ERROR ", "an error"),
)  # fmt: skip


@dataclass(frozen=True)
class LogCause:
    """What a log boils down to. `time_s`: seconds since the epoch, 0 where the log has none."""

    sign: Sign
    time_s: float
    words: str
    rank_words: str = ""


def message(line: str) -> tuple[float, str]:
    """Time and words of a journal line in the form short-unix, colours taken out."""
    match = _STAMP.match(line)
    if match is None:
        return 0.0, _ANSI.sub("", line)
    return float(match[1]), _ANSI.sub("", match[3])


def causes(lines: Iterable[str]) -> list[LogCause]:
    """Every sign in `lines`, deepest first, then earliest."""
    found = []
    for line in lines:
        time_s, words = message(line)
        if "No such container" in words:  # `docker rm` before every start
            continue
        for sign in SIGNS:
            if re.search(sign.pattern, words):
                who = _RANK.search(words)
                rank = f"{who[1]} {who[3] or ''}".strip() if who else ""
                found.append(LogCause(sign, time_s, words.strip(), rank))
                break
    return sorted(found, key=lambda cause: (cause.sign.rank, cause.time_s))


def first_cause(lines: Iterable[str]) -> str:
    """The words of the deepest and earliest sign; the last line where there is none."""
    every = [line for line in lines if not line.startswith("-- ")]
    found = causes(every)
    if found:
        return found[0].words[:300]
    return message(every[-1])[1].strip()[:300] if every else ""
