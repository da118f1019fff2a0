"""What is known of a host. Frozen values; None or empty where the host did not say."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm_cluster.facts import gcs_table
from vllm_cluster.facts.doctor.gpu_model import Gpus, RdmaPort
from vllm_cluster.plan.generations import Kept
from vllm_cluster.plan.run_lock import Busy


@dataclass(frozen=True)
class System:
    """The machine and its kernel. Sizes in bytes, times in seconds."""

    hostname: str = ""
    kernel: str = ""
    os: str = ""
    os_id: str = ""
    boot_id: str = ""
    uptime_s: float = 0.0
    cpus: int = 0
    memory_bytes: int = 0
    available_bytes: int = 0
    ephemeral: tuple[int, int] = (0, 0)
    reserved: tuple[tuple[int, int], ...] = ()
    reboot_required: bool = False


@dataclass(frozen=True)
class Disk:
    """The file system that holds `path`. `error` where `df` had no answer."""

    path: str
    mount: str = ""
    kind: str = ""
    size_bytes: int = 0
    free_bytes: int = 0
    inodes: int = 0
    free_inodes: int = 0
    hung: bool = False
    error: str = ""


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo."""

    target: str
    kind: str
    source: str
    options: frozenset[str]


@dataclass(frozen=True)
class Unit:
    """A unit of systemd. Times are seconds since the epoch, 0 where never.

    `log`: the last lines of its journal. `ends`: systemd's lines of its last starts and ends in
    this boot, and before the last end the unit's own. `restarts`: since a person or a deploy
    started it last; `in_a_row`: how often it ended since it last held. `queued`: systemd is
    about to start or to stop it.
    """

    name: str
    load: str = ""
    active: str = ""
    sub: str = ""
    file_state: str = ""
    need_reload: bool = False
    result: str = ""
    exit_status: int = 0
    restarts: int = 0
    in_a_row: int = 0
    active_since_s: float = 0.0
    started_s: float = 0.0
    changed_s: float = 0.0
    drop_ins: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    queued: bool = False

    @property
    def running(self) -> bool:
        """Active, as systemd counts it."""
        return self.active == "active"


@dataclass(frozen=True)
class Link:
    """A network card. Flags as `ip link` shows them: UP (switched on), LOWER_UP (cable)."""

    name: str
    mtu: int = 0
    flags: frozenset[str] = frozenset()
    speed_mbit: int = 0


@dataclass(frozen=True)
class Peer:
    """How another host is reached from here.

    `ping`: full (a packet of `mtu` bytes, not fragmented, came back), small (only a small one
    did), none, or empty where there is no ping. `ports`: port -> open, dropped, or the words of
    the failure, such as "Connection refused".
    """

    name: str
    device: str = ""
    source: str = ""
    ping: str = ""
    mtu: int = 0
    rtt_ms: float | None = None
    words: str = ""
    ports: dict[int, str] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        """Something came back."""
        answered = any(a in {"open", "Connection refused"} for a in self.ports.values())
        return self.ping in {"full", "small"} or answered


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket."""

    address: str
    port: int
    process: str = ""
    pid: int = 0


@dataclass(frozen=True)
class Owner:
    """Who listens on a planned port. `ours`: a process of one of the cluster's containers."""

    port: int
    pid: int
    command: str
    ours: bool
    unit: str = ""
    container: str = ""
    line: str = ""


@dataclass(frozen=True)
class Holder:
    """The tool that holds the firewall in place of our table: ufw, firewalld, or none (empty).

    `state`: ufw's own lines of its status. `rules`: lines of `ufw show added`, or firewalld's rich
    rules of our policy as they are in force.
    """

    name: str = ""
    state: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Container:
    """A container as Docker describes it. `config`: the digest of its plan, in our label."""

    name: str
    id: str = ""
    image: str = ""
    running: bool = False
    status: str = ""
    oom_killed: bool = False
    exit_code: int = 0
    restart: str = ""
    network: str = ""
    published: tuple[str, ...] = ()
    config: str = ""


@dataclass(frozen=True)
class Inside:
    """A running container as its first process has it. Sizes in bytes; -1 is unlimited.

    `python`: to the patch where the container tells, else to the minor version. `nvml`: the first
    line of `nvidia-smi -L` in it, empty where there are no GPUs to ask for.
    """

    name: str
    shm_bytes: int = 0
    shm_free_bytes: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    python: str = ""
    rdma_devices: tuple[str, ...] = ()
    namespace: str = ""
    nvml: str = ""


@dataclass(frozen=True)
class Docker:
    """The daemon. `error` are its client's words where it did not answer."""

    installed: bool = True
    error: str = ""
    version: str = ""
    root: str = ""
    cgroup_driver: str = ""
    runtimes: tuple[str, ...] = ()
    log_driver: str = ""
    live_restore: bool = False
    image_id: str = ""
    image_error: str = ""
    containers: dict[str, Container] = field(default_factory=dict)
    inside: dict[str, Inside] = field(default_factory=dict)

    @property
    def silent(self) -> bool:
        """It is there and does not answer: what runs in its containers is not known then."""
        return self.installed and bool(self.error)


@dataclass(frozen=True)
class File:
    """A file of ours: mode as octal text; `changed_s` is its ctime."""

    path: str
    mode: str
    user: str
    group: str
    size_bytes: int
    changed_s: float
    kind: str


@dataclass(frozen=True)
class Model:
    """The model's directory: names to sizes, the manifest's digest, and what was touched since.

    `kinds` holds what is no plain file. `hashes`: SHA-256 of files that changed after the
    manifest was written; `unhashed`: reading them took too long. `hung`: so did their names.
    """

    present: bool = False
    hung: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    manifest: str = ""
    hashes: dict[str, str] = field(default_factory=dict)
    unhashed: bool = False


@dataclass(frozen=True)
class Verified:
    """The last reading of every byte of the weights. `ended_s`: since the epoch, 0: never."""

    ended_s: float = 0.0
    whole: bool = True
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP. `status` 0: none; then `words` says why."""

    status: int = 0
    body: str = ""
    words: str = ""
    timed_out: bool = False


@dataclass(frozen=True)
class RayNode:
    """A node as the head lists it. `ended_s`: when it died, since the epoch; 0 where it lives."""

    node_id: str
    address: str
    alive: bool
    gpus: int
    message: str = ""
    ended_s: float = 0.0


@dataclass(frozen=True)
class Ray:
    """What the head's dashboard says; None where this host is no head or it did not answer."""

    answer: Answer = Answer()
    nodes: tuple[RayNode, ...] = ()


@dataclass(frozen=True)
class Api:
    """vLLM's API as its own host sees it. `later`: metrics after a completion that did not come."""

    health: Answer = Answer()
    completion: Answer = Answer()
    keyless_status: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    later: dict[str, float] = field(default_factory=dict)

    @property
    def gave_a_token(self) -> bool:
        """A completion came with a token in it; or what a model that completes nothing gives."""
        body, ok = self.completion.body, self.completion.status == 200
        return ok and ('"completion_tokens"' in body or '"data"' in body)


# As in `attempt`, which says it in the journal.
_OFTEN = 4


@dataclass(frozen=True)
class Recovery:
    """What a unit notes of itself: why it gave up, and why the watchdog ended it, the last last.

    `watched_s`: the host's uptime when the watchdog last heard from inside; 0 where it never did.
    `again`: when it was started again though nobody asked for it, and why. `starts`: since it last
    held.
    """

    gave_up: str = ""
    watchdog: tuple[str, ...] = ()
    watched_s: float = 0.0
    again: tuple[tuple[float, str], ...] = ()
    starts: int = 0

    def often(self, clock_s: float) -> tuple[str, ...]:
        """Why it was started again in the last 24 hours, where that is more than now and then."""
        reasons = tuple(why for when_s, why in self.again if when_s >= clock_s - 86400)
        return reasons if len(reasons) >= _OFTEN else ()


@dataclass(frozen=True)
class RayFile:
    """The end of one of Ray's own files. `changed_s`: since the epoch, by the host's clock."""

    name: str
    changed_s: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class HostFacts:
    """Everything that one round trip brought back from one host.

    `complete`: it answered to the end; else `ended` says why not, and `words` are ssh's.
    `hung`: mount points of servers that do not answer, each with the kernel's words, empty where
    it has none yet. `run`: who holds the lock of a run, if anybody did during the look. `kept`:
    path to the generations that have the file as it lies there.
    """

    name: str
    root: bool = True
    complete: bool = True
    ended: str = ""
    words: str = ""
    clock_s: float = 0.0
    clock_offset_s: float | None = None
    run: Busy | None = None
    system: System = System()
    disks: dict[str, Disk] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    hung: dict[str, str] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    recovery: dict[str, Recovery] = field(default_factory=dict)
    kernel_log: tuple[str, ...] = ()
    links: dict[str, Link] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cloud_init: tuple[str, ...] = ()
    peers: dict[str, Peer] = field(default_factory=dict)
    listeners: tuple[Listener, ...] = ()
    owners: tuple[Owner, ...] = ()
    usage: tuple[str, ...] = ()
    prefixes: dict[str, int] = field(default_factory=dict)
    nft: str = ""
    gcs: gcs_table.State = ""
    holder: Holder = Holder()
    docker: Docker = Docker()
    files: dict[str, File] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    model: Model = Model()
    verified: Verified = Verified()
    gpus: Gpus = field(default_factory=Gpus)
    rdma: tuple[RdmaPort, ...] = ()
    rank_lines: tuple[str, ...] = ()
    ray_files: tuple[RayFile, ...] = ()
    generations: Kept = field(default_factory=Kept)
    kept: dict[str, frozenset[str]] = field(default_factory=dict)
    raylet: Answer = Answer()
    ray: Ray = Ray()
    api: Api = Api()

    @property
    def whole(self) -> bool:
        """Looked at as root, and answered to the end."""
        return self.root and self.complete

    def unit(self, name: str) -> Unit:
        """The unit of that name; one that is not known where systemd said nothing."""
        return self.units.get(name, Unit(name, load="not-found", active="inactive"))

    def as_kept(self, path: str) -> bool:
        """Whether the file is that of the generation in place, or of the one that is switched to:
        nobody has changed it since."""
        mine = {self.generations.current, self.generations.pending} - {None}
        return bool(mine & self.kept.get(path, frozenset()))

    def recovered(self, unit: str) -> Recovery:
        """What the unit of that name (with its suffix) notes of itself."""
        return self.recovery.get(unit.removesuffix(".service"), Recovery())

    @property
    def deployed(self) -> bool:
        """Whether a deploy has written its files here."""
        return any(path.startswith("/etc/vllm-cluster/") for path in self.files)
