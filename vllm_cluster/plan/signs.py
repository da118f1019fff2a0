"""Words in the logs of Ray, vLLM and Docker that name a cause.

The doctor reads logs with them, and a unit that gives up says with them why: the same words in
both. Patterns are Python's and PCRE's at once (`grep -P` on the hosts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Plane = Literal[
    "host", "network", "docker", "gpu", "ray", "collective", "memory", "model", "vllm", "security"
]


@dataclass(frozen=True)
class Sign:
    """`rank`: how deep the cause lies; the lowest is taken."""

    rank: int
    plane: Plane
    pattern: str
    meaning: str


# The meaning of what names no cause that is known.
ERROR = "an error"
# Ends that only follow from another.
_FOLLOWS = (
    r"EngineDeadError|Engine core initialization failed|EngineCore(?:_\w+)? failed|"
    r"EngineCore encountered an? (?:fatal error|issue)|output_handler failed|"
    r"RayWorkerProc.*died|died unexpectedly|Executor failed\.|[Ss]ee stack trace for root cause"
)
# Nor is an error what vLLM's logger calls less than one, or a line of a traceback's source.
_ERROR = (
    rf"^(?!.*(?:{_FOLLOWS}|\b(?:DEBUG|INFO|WARNING) \d\d-\d\d |\[\S+:\d+\]  |Traceback \(most))"
    r"(?!(?:.*[)\]] )?\s*raise )"
)
# What pydantic refuses it names in the next line.
_REFUSED = r"\d validation errors? for "

NAMED_ERROR = 7
# Deepest first. What only follows from something else stands last.
SIGNS: tuple[Sign, ...] = (
    Sign(0, "host", r"[Nn]o space left on device|ENOSPC", "the disk is full"),
    Sign(0, "host", r"[Rr]ead-only file system", "a file system is read-only"),
    Sign(1, "docker", r"No such image|Unable to find image", "the image is not on this host"),
    Sign(1, "docker", r"invalid mount config|bind source path does not exist",
         "a file or directory that the container needs is gone"),
    Sign(1, "docker", r"Cannot connect to the Docker daemon", "Docker does not run"),
    Sign(1, "docker", r"error setting rlimit|OCI runtime create failed",
         "Docker could not make the container"),
    Sign(1, "docker", r"is already in use by container", "a container of that name exists"),
    Sign(1, "docker", r"error waiting for container", "Docker ended while the container ran"),
    Sign(1, "gpu", r"could not select device driver|nvidia-container-cli",
         "Docker cannot hand out GPUs"),
    Sign(1, "gpu", r"Driver/library version mismatch", "the driver was updated without a reboot"),
    Sign(1, "gpu", r"Failed to initialize NVML", "the container has lost its GPUs"),
    Sign(1, "gpu", r"fallen off the bus|CUDA error: (?:an illegal|uncorrectable|hardware)",
         "a GPU failed"),
    Sign(1, "gpu", r"system not yet initialized|error 802", "the fabric manager does not run"),
    Sign(1, "model", r"the model on this host is not the plan's",
         "the model on this host is another, or damaged"),
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
    Sign(2, "memory", r"CUDA out of memory|OutOfMemoryError|"
         r"Free memory on device.*less than desired|"
         r"No available memory for the cache blocks", "GPU memory does not suffice"),
    Sign(2, "memory", r"Available memory on node .* is less than", "memory does not suffice"),
    Sign(2, "memory", r"oom-kill|Out of memory|exit code 137|signal 9|"
         r"(?<!with signal )SIGKILL|"
         r"node running low on memory|"
         r"[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure",
         "a process was killed, mostly for want of memory"),
    Sign(2, "memory", r"/dev/shm|shared memory segment|open shm", "/dev/shm is too small"),
    Sign(2, "memory", r"Cannot allocate memory", "memory, or locked memory, does not suffice"),
    Sign(2, "model", r"the model on this host could not be looked at",
         "the model on this host could not be read"),
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
    Sign(6, "vllm", r"\*\*\* SIG(?:SEGV|ABRT|BUS|ILL|FPE) |Fatal Python error",
         "a process crashed"),
    # `ray start --block` of each of its processes that ended, before the ends of their logs.
    Sign(6, "ray", r"\[exit code=-?[1-9]|Raylet is terminated", "a process of Ray's ended"),
    Sign(NAMED_ERROR, "vllm", rf"{_ERROR}(?!.*{_REFUSED}).*\b(?:\w+Error|\w*Exception)\b(?:\(|:|$)|"
         r"^(?:\(\w+ pid=\d+\) )?\s*(?:Value error|Assertion failed), ", ERROR),
    Sign(8, "vllm", rf"{_ERROR}(?:Error\b|refused: |"
         rf".*(?:ERROR |\berror: |no completion|gave up|{_REFUSED}))", ERROR),
    Sign(9, "vllm", _FOLLOWS, "an engine process died"),
)  # fmt: skip

# Lines that never say why something ended, a pattern likewise: who asked what of the API, news of
# Ray's own parts, and that Ray sees no way to the Internet, which it needs not.
NOISE = (
    r"(?:^|\) )INFO: +\S+ - .[A-Z]+ |"
    r"(?:^|\) )\s*\[?\d{4}-\d\d-\d\d [\d:]+[,.]\d+\s+(?:[DI]|DEBUG|INFO|SUCC) |"
    r"^no completion yet|Failed to determine local IP"
)
# Nor do, anywhere: `docker rm` before every start, a line of source in a traceback, and what stands
# around the end of a log that Ray shows.
NAMELESS = r"No such container|(?:^|[)\]] )\s*raise | tail \(exit code\(s\)="
# Nor of what has ended: what was waited for and came, or its unit would wait still, vLLM's news and
# warnings, and Docker's advice.
PAST = (
    r"^waiting|Waiting for creating a placement group|"
    r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d |^(?:See|Run) .docker run --help"
)

# Words of Docker's own, likewise.
DOCKER = r'^time="[^"]*" level=[a-z]+ msg="(.*)"$'
# What loggers put before the words: which process of this host, and the stamps of Ray's Python, of
# vLLM, and of Ray's C++. Patterns of Python's and of `sed -E` at once, like the next one.
LOGGER = (
    r"^(\(\w+ pid=[0-9]+\) +)+|"
    r"[0-9-]{10} [0-9:]{8},[0-9]+\s*[A-Z]+ [^ ]+:[0-9]+ -- +|"
    r"[A-Z]+ [0-9]{2}-[0-9]{2} [0-9:]{8} \[[^ ]+:[0-9]+\] +|"
    r"\[[0-9-]{10} [0-9:]{8},[0-9]+ [A-Z] [0-9]+ [0-9]+\] (\([^ )]+\) )?[^ ]+:[0-9]+: +"
)
# Ray guesses behind every process that is gone: SIGKILL, `ray stop`, a crash.
GUESSES = (
    r"(\. Termination is unexpected)?\.? (Possible reasons include|"
    r"There are some potential root causes).*"
)


def causes() -> list[str]:
    """The patterns that name a cause, and not just any error or what follows from one."""
    return [sign.pattern for sign in SIGNS if sign.rank <= NAMED_ERROR]


def patterns() -> str:
    """The patterns alone, deepest first, one a line."""
    return "".join(f"{sign.pattern}\n" for sign in sorted(SIGNS, key=lambda sign: sign.rank))
