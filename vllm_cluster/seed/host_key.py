"""SSH host keys made here and carried in a seed, kept beside the generated secrets."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from vllm_cluster.seed.values import HostKey
from vllm_cluster.spec import Cluster

_NAME = "ssh_host_ed25519_key"


def kept(cluster: Cluster, host: str) -> HostKey | None:
    """The pair that was made for `host`; None where there is none."""
    private = _folder(cluster, host) / _NAME
    try:
        public = private.with_suffix(".pub").read_text(encoding="utf-8").strip()
        return HostKey(private.read_text(encoding="utf-8"), public)
    except FileNotFoundError:
        return None


def make(cluster: Cluster, host: str) -> HostKey:
    """A new pair for `host`, in place of an old one. Needs `ssh-keygen`."""
    folder = _folder(cluster, host)
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        new = Path(made) / "new"
        new.mkdir(mode=0o700)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host, "-f", str(new / _NAME)]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        if folder.exists():
            folder.rename(Path(made) / "old")
        new.rename(folder)
    pair = kept(cluster, host)
    if pair is None:
        raise FileNotFoundError(folder)
    return pair


def forget(cluster: Cluster, host: str) -> None:
    """Remove the pair; nothing when there is none."""
    folder = _folder(cluster, host)
    if folder.exists():
        shutil.rmtree(folder)


def _folder(cluster: Cluster, host: str) -> Path:
    name = cluster.description.cluster
    return cluster.file.parent / ".secrets" / name / "host-keys" / host
