"""One table over all hosts before anything is started: what must be equal, and what is not.

Hosts that differ start all the same, and fail much later: an all-reduce that hangs, a worker that
is refused, an answer that is wrong (https://github.com/vllm-project/vllm/issues/4114, Ray's own
check of versions down to Python's patch level: https://github.com/ray-project/ray/issues/44063).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["good", "note", "red"]

# Far below what breaks anything known (TLS, logs that cannot be laid side by side), far above
# what a synchronised clock is off and what the measurement over a slow link can be wrong by.
CLOCK_LIMIT_S = 1.0
_NONE = "none"


@dataclass(frozen=True)
class Observed:
    """One host, as it is. Texts are empty where there is nothing.

    `clock_s` are the earliest and the latest offset to the clock of the operator's machine that
    the measurement allows, in seconds.
    """

    values: Mapping[str, str]
    clock_s: tuple[float, float] = (0.0, 0.0)

    def get(self, key: str) -> str:
        """A value; empty when the host has none."""
        return self.values.get(key, "")


@dataclass(frozen=True)
class Expected:
    """What the description says of every host. Empty texts: it says nothing, hosts be equal."""

    head: str
    gpus: Mapping[str, int]
    nvidia: bool
    image: str
    vllm: str
    ray: str
    manifest: str
    gpu_model: str = ""


@dataclass(frozen=True)
class Cell:
    """What a host has, and whether that is right. A red one stops the run."""

    text: str
    state: State = "good"


@dataclass(frozen=True)
class Problem:
    """A red row: which hosts are off, what the others have, what to do."""

    title: str
    hosts: tuple[str, ...]
    found: str
    wanted: str
    fix: str

    def text(self) -> str:
        """One sentence for a person, then the fix."""
        names = ", ".join(self.hosts)
        verb = "has" if len(self.hosts) == 1 else "have"
        return f"{self.title}: {names} {verb} {self.found}, not {self.wanted}. {self.fix}"


@dataclass(frozen=True)
class Table:
    """Rows by title, cells by host, in the order of the description."""

    hosts: tuple[str, ...]
    rows: dict[str, dict[str, Cell]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class _Row:
    key: str
    title: str
    fix: str
    severity: State = "red"
    nvidia: bool = False
    required: bool = False
    wanted: Callable[[Expected, str], str] | None = None
    fits: Callable[[str, str], bool] = str.__eq__


def _begins(found: str, wanted: str) -> bool:
    # A build adds a local label to its version: 0.33.0+cu129 (PEP 440).
    return found.partition("+")[0] == wanted


def _names_model(found: str, wanted: str) -> bool:
    return wanted.lower().replace(" ", "-") in found.lower().replace(" ", "-")


def _enough(found: str, wanted: str) -> bool:
    return found.isdigit() and int(found) >= int(wanted)


_REINSTALL = (
    "Install one driver version on all hosts (deploys/gpu.py) and reboot those that changed."
)
_REPIN = "Pin the image that holds these versions under image, or correct them there."

_ROWS = (
    _Row("os", "system", "", severity="note"),
    _Row("kernel", "kernel", "", severity="note"),
    _Row("driver_loaded", "driver loaded", _REINSTALL, nvidia=True, required=True),
    _Row("driver_installed", "driver installed", _REINSTALL, nvidia=True, required=True),
    _Row("cuda", "CUDA of the driver", _REINSTALL, nvidia=True, required=True),
    _Row(
        "toolkit", "container toolkit", "Run deploys/gpu.py on all hosts.",
        nvidia=True, required=True,
    ),
    _Row("docker", "Docker", "", severity="note"),
    _Row(
        "image", "image", "Run deploys/cluster.py again: it brings the image by its ID.",
        required=True, wanted=lambda e, _: e.image,
    ),
    _Row("python", "Python in the image", _REPIN, required=True),
    _Row("ray", "Ray in the image", _REPIN, wanted=lambda e, _: e.ray, fits=_begins),
    _Row("vllm", "vLLM in the image", _REPIN, wanted=lambda e, _: e.vllm, fits=_begins),
    _Row("torch", "torch in the image", "", severity="note"),
    _Row(
        "gpu_model", "GPU", "Correct gpu.model, or take the host out: vLLM wants equal GPUs.",
        nvidia=True, required=True, wanted=lambda e, _: e.gpu_model, fits=_names_model,
    ),
    _Row(
        "gpu_memory", "GPU memory", "Take the host out: the smallest GPU sets the KV cache of all.",
        nvidia=True, required=True,
    ),
    _Row(
        "gpu_count", "GPUs", "Look for a GPU that fell off the bus (`nvidia-smi`, `dmesg`), or "
        "correct hosts.NAME.gpus.",
        nvidia=True, required=True, wanted=lambda e, host: str(e.gpus[host]), fits=_enough,
    ),
    _Row(
        "mtu", "MTU on the fabric", "Set one MTU on all hosts and on the switch between them: "
        "packets of another size vanish without a word.",
    ),
    _Row(
        "manifest", "weights", "Run deploys/cluster.py again: it places the weights anew.",
        required=True, wanted=lambda e, _: e.manifest,
    ),
)  # fmt: skip
_IN_IMAGE = ("python", "ray", "vllm", "torch")


def align(observed: Mapping[str, Observed | None], expected: Expected) -> Table:
    """Compare the hosts. None stands for a host that gave no answer."""
    hosts = tuple(observed)
    there = {name: seen for name, seen in observed.items() if seen is not None}
    rows: dict[str, dict[str, Cell]] = {}
    problems: list[Problem] = []
    silent = tuple(name for name in hosts if name not in there)
    if silent:
        fix = "Mend what failed on it above, or leave it out with --limit."
        problems.append(Problem("answer", silent, "none", "one of every host", fix))
        rows["answer"] = {n: Cell("yes" if n in there else _NONE, _red(n in silent)) for n in hosts}
    for row in _ROWS:
        if row.nvidia and not expected.nvidia:
            continue
        cells, found = _compare(row, there, expected)
        if any(cell.text != _NONE for cell in cells.values()) or found:
            rows[row.title] = cells
        problems += found
    if expected.nvidia:
        problems += _reboots(there, rows)
    rows["clock"], late = _clocks(there)
    problems += late
    return Table(hosts, rows, tuple(problems))


def _red(is_red: bool) -> State:
    return "red" if is_red else "good"


def _compare(
    row: _Row, there: Mapping[str, Observed], expected: Expected
) -> tuple[dict[str, Cell], list[Problem]]:
    head = there.get(expected.head)
    of_head = head.get(row.key) if head else ""
    reference = _reference([seen.get(row.key) for seen in there.values()], of_head)
    cells: dict[str, Cell] = {}
    wrong: dict[tuple[str, str], list[str]] = {}
    for name, seen in there.items():
        found = seen.get(row.key)
        declared = row.wanted(expected, name) if row.wanted else ""
        wanted = declared or reference
        good = row.fits(found, wanted) if declared else found == wanted
        if row.required and not found:
            good, wanted = False, wanted or "any"
        if row.key in _IN_IMAGE and not seen.get("image"):
            good = True  # told by the row of the image already
        cells[name] = Cell(_short(row.key, found) or _NONE, "good" if good else row.severity)
        if not good and row.severity == "red":
            key = (_short(row.key, found) or _NONE, _short(row.key, wanted))
            wrong.setdefault(key, []).append(name)
    problems = [
        Problem(row.title, tuple(names), found, wanted, row.fix)
        for (found, wanted), names in wrong.items()
    ]
    return cells, problems


def _reference(values: list[str], of_head: str) -> str:
    """What most hosts have; where no value has more than half, what the head has."""
    if not values:
        return ""
    value, count = Counter(values).most_common(1)[0]
    return value if count * 2 > len(values) else of_head or value


def _short(key: str, value: str) -> str:
    """Digests as people compare them: 12 digits, as Docker itself shows an image."""
    if key in {"image", "manifest"}:
        return value.removeprefix("sha256:")[:12] if "@" not in value else value[-12:]
    return value


def _reboots(there: Mapping[str, Observed], rows: dict[str, dict[str, Cell]]) -> list[Problem]:
    """A driver that was upgraded beneath the loaded one: NVML fails in every new process."""
    problems = []
    for name, seen in there.items():
        loaded, installed = seen.get("driver_loaded"), seen.get("driver_installed")
        if loaded and installed and loaded != installed:
            rows["driver installed"][name] = Cell(installed, "red")
            fix = f"Reboot {name}, so that the installed driver is the loaded one."
            problems.append(
                Problem("driver installed", (name,), installed, f"the loaded {loaded}", fix)
            )
    return problems


def _clocks(there: Mapping[str, Observed]) -> tuple[dict[str, Cell], list[Problem]]:
    """Clocks against the time that most hosts agree on."""
    if len(there) < 2:
        return {name: Cell("alone") for name in there}, []
    reference = _time([seen.clock_s for seen in there.values()])
    cells: dict[str, Cell] = {}
    problems: list[Problem] = []
    for name, seen in there.items():
        if _within(reference, seen.clock_s):
            cells[name] = Cell("in step")
            continue
        text = f"{sum(seen.clock_s) / 2 - reference:+.1f} s"
        cells[name] = Cell(text, "red")
        fix = "Let it synchronise (`timedatectl`, `chronyc makestep`) and run again."
        limit = f"within {CLOCK_LIMIT_S:.0f} s of the others"
        problems.append(Problem("clock", (name,), text, limit, fix))
    return cells, problems


def _within(offset_s: float, clock_s: tuple[float, float]) -> bool:
    earliest, latest = clock_s
    return earliest - CLOCK_LIMIT_S <= offset_s <= latest + CLOCK_LIMIT_S


def _time(clocks: list[tuple[float, float]]) -> float:
    """The offset that most clocks fit; the operator's own, 0, decides where they are even."""
    candidates = [sum(clock) / 2 for clock in clocks]
    candidates += [edge for clock in clocks for edge in clock]
    return max(
        candidates,
        key=lambda at: (sum(_within(at, clock) for clock in clocks), abs(at) <= CLOCK_LIMIT_S),
    )
