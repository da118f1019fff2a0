"""Directories and files that several steps use, and the packages behind them."""

from weakref import WeakKeyDictionary

from pyinfra.api.deploy import deploy
from pyinfra.api.state import State
from pyinfra.context import host

from vllm_cluster.operations import files, packages
from vllm_cluster.operations.files import Directory, File, Merged
from vllm_cluster.plan import members, paths, signs
from vllm_cluster.steps import here
from vllm_cluster.steps.render import plain, render

_LEFT = (
    "left the description and may still run what it ran for this cluster; "
    "`vllm-cluster down DESCRIPTION"
)
# Whom a run has named. A new head may never have known them: each host names those it knows.
_named: WeakKeyDictionary[State, set[str]] = WeakKeyDictionary()
SCRIPTS = (
    "serve", "wait-for-head", "wait-for-gpus", "await-completion", "attempt", "host-ready",
    "end-container", "watch", "watch.py", "door", "drain", "generation", "weights-ready",
    "unless-stopped", "clear-ray",
)  # fmt: skip


@deploy("Base")
def base_step() -> None:
    """What the other steps stand on."""
    packages.installed(
        name="Install nftables, rsync, python3, and what measures the network",
        packages=["nftables", "rsync", "python3", "iputils-ping", "iperf3"],
    )
    wanted: dict[str, File | Directory | Merged] = {
        paths.CONFIG: Directory(),
        paths.VLLM_CONFIG: Directory(),
        paths.SECRETS: Directory(mode="700"),
        paths.STATE: Directory(),
        paths.RAY: Directory(mode="700"),
        # Ranks of one host talk through sockets in it, on a worker too: it has the head's path.
        paths.RPC: Directory(mode="700"),
        paths.COMPILE_CACHE: Directory(),
        paths.SCRIPTS: Directory(),
        paths.MEMBERS: Merged(_members),
    }
    if here.plan().weights.copied:  # a share of others is left as it is
        directory = here.plan().weights_directory
        # A team's own, such as /srv/models, stays writable for those for whom it was.
        theirs = not directory.startswith(f"{paths.STATE}/")
        wanted[directory] = Directory(theirs=theirs)
    for script in SCRIPTS:
        path = f"{paths.SCRIPTS}/{script}"
        wanted[path] = File(plain(path), mode="755")
    wanted[f"{paths.SCRIPTS}/signs"] = File(signs.patterns(), ours=False)
    # Enabled only while a switch of generations is under way.
    unit = f"{paths.UNITS}/{paths.GENERATION_UNIT}"
    wanted[unit] = File(render(unit, plan=here.plan(), paths=paths))
    files.place(name="Write the directories and scripts of the cluster", wanted=wanted)


def _members(old: str) -> str:
    """The record of the cluster's hosts; who left and was not cleaned is said once in a run."""
    plan = here.plan()
    found = members.after(old, plan.cluster, {name: h.ssh for name, h in plan.hosts.items()})
    named = _named.setdefault(host.state, set())
    for name, address in found.left.items():
        if address not in named:
            named.add(address)
            host.log_styled(f"{name} ({address}) {_LEFT} --host {name}` removes it", fg="yellow")
    return found.text()
