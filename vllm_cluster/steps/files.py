"""Directories and files that several steps use, and the packages behind them."""

from pyinfra.api.deploy import deploy

from vllm_cluster.operations import files, packages
from vllm_cluster.operations.files import Directory, File
from vllm_cluster.plan import paths, signs
from vllm_cluster.steps import configs, here
from vllm_cluster.steps.render import plain

SCRIPTS = (
    "serve", "wait-for-head", "wait-for-gpus", "await-completion", "attempt", "host-ready",
    "end-container", "watch", "watch.py", "door",
)  # fmt: skip


@deploy("Base")
def base_step() -> None:
    """What the other steps stand on."""
    packages.installed(
        name="Install nftables, rsync, python3, and what measures the network",
        packages=["nftables", "rsync", "python3", "iputils-ping", "iperf3"],
    )
    wanted: dict[str, File | Directory] = {
        paths.CONFIG: Directory(),
        paths.VLLM_CONFIG: Directory(),
        paths.SECRETS: Directory(mode="700"),
        paths.STATE: Directory(),
        paths.RAY: Directory(mode="700"),
        paths.COMPILE_CACHE: Directory(),
        here.plan().weights_directory: Directory(),
        paths.SCRIPTS: Directory(),
    }
    for script in SCRIPTS:
        path = f"{paths.SCRIPTS}/{script}"
        wanted[path] = File(plain(path), mode="755")
    probe = f"{paths.SCRIPTS}/probe.py"
    wanted[probe] = File(configs.probe_file(here.plan(), here.this()), mode="755")
    wanted[f"{paths.SCRIPTS}/signs"] = File(signs.patterns(), ours=False)
    files.place(name="Write the directories and scripts of the cluster", wanted=wanted)
