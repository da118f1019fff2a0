"""Four hosts with Docker and nothing else, and deploys/image.py on them."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.lab import standin
from tests.lab.bare import ok
from tests.lab.harness import Cluster, describe
from tests.lab.images.made import Made, write
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab
from vllm_cluster.lab.host import Host

DEPLOY = "deploys/image.py"
STAGED = "/var/lib/docker/vllm-cluster-images"


@dataclass(frozen=True)
class Fleet:
    """The hosts, and the description that the tests change."""

    cluster: Cluster
    folder: Path

    @property
    def hosts(self) -> list[Host]:
        """All of them, in the cluster's order."""
        return self.cluster.lab.hosts

    def want(self, made: Made) -> Path:
        """Let the description name an archive of this image; the archive."""
        archive = write(made, self.folder / f"{made.id[7:19]}.tar")
        self.edit({"archive": str(archive), "reference": "vllm-cluster/made:1"})
        return archive

    def edit(self, image: dict[str, str]) -> None:
        """Another image for the description."""
        whole = yaml.safe_load(self.cluster.description.read_text())
        whole["image"] = {"vllm": "0.32.0", "ray": "2.60.0", **image}
        self.cluster.description.write_text(yaml.safe_dump(whole, sort_keys=False))

    def run(self, *limit: str) -> subprocess.CompletedProcess[str]:
        """Deploy the image on these hosts, or on all; the exit code is not judged."""
        chosen = [word for host in limit for word in ("--limit", host)]
        return self.cluster.pyinfra("-y", *chosen, deploy=DEPLOY)

    def apply(self, *limit: str) -> tuple[str, float]:
        """Deploy the image; what was said, and the seconds that it took."""
        began = time.monotonic()
        done = self.run(*limit)
        said = plain(done.stdout + done.stderr)
        assert done.returncode == 0, said
        return said, time.monotonic() - began

    def start(self, *limit: str) -> subprocess.Popen[str]:
        """Deploy in the background."""
        chosen = [word for host in limit for word in ("--limit", host)]
        return self.cluster.start("-y", *chosen, deploy=DEPLOY)

    def shape(self, rate: str | None) -> None:
        """Every link carries that much, each way."""
        for host in self.hosts:
            host.shape(rate)

    def empty(self) -> None:
        """No image, nothing staged, no job, on all hosts at once."""
        self._each(
            "for u in $(systemctl list-units --plain --no-legend 'vllm-cluster-weights-*' |"
            " cut -d' ' -f1); do systemctl stop $u; done; "
            'ids=$(docker image ls -aq | sort -u); [ -z "$ids" ] || docker rmi -f $ids >/dev/null;'
            f" rm -rf {STAGED}"
        )

    def ids(self, image: str) -> dict[str, str]:
        """The ID that `docker image inspect` says of `image`, by host; empty where it is not."""
        line = f"docker image inspect --format '{{{{.Id}}}}' {image} 2>/dev/null || true"
        return {name: said.strip() for name, said in self._each(line).items()}

    def staged(self) -> dict[str, str]:
        """What is left of ours beneath Docker's directory, and of the agent's units, by host."""
        return self._each(
            f"ls -d {STAGED} 2>/dev/null; ss -Htln | grep -F :6388; "
            "systemctl list-units --plain --no-legend 'vllm-cluster-weights-*'; true"
        )

    def _each(self, line: str) -> dict[str, str]:
        with ThreadPoolExecutor() as pool:
            said = pool.map(lambda host: ok(host, line), self.hosts)
            return dict(zip([host.name for host in self.hosts], said, strict=True))

    @contextmanager
    def counted(self) -> Iterator[dict[str, tuple[int, int]]]:
        """Bytes that each host received and sent over its cable while the block ran."""
        before = self._bytes()
        moved: dict[str, tuple[int, int]] = {}
        yield moved
        for name, (received, sent) in self._bytes().items():
            moved[name] = (received - before[name][0], sent - before[name][1])

    def _bytes(self) -> dict[str, tuple[int, int]]:
        layout = self.cluster.lab.layout
        found = {}
        for host in self.hosts:
            argv = ["ip", "-n", host.place.namespace, "-s", "-j", "link", "show", layout.interface]
            said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
            stats: Any = json.loads(said)[0]["stats64"]
            found[host.name] = (int(stats["rx"]["bytes"]), int(stats["tx"]["bytes"]))
        return found


def plain(text: str) -> str:
    """Without the terminal's colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@contextmanager
def fleet(
    name: str, folder: Path, *, hosts: int = 4, release: str = "bookworm",
    packages: Sequence[str] = ("docker.io", "python3"),
) -> Iterator[Fleet]:  # fmt: skip
    """A lab of this name for as long as the block runs."""
    lab = Lab.up(hosts, name=lab_name(name), release=release)
    try:
        line = f"apt-get install -qq -y --no-install-recommends {' '.join(packages)}"
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: ok(host, f"apt-get update -qq && {line}"), lab.hosts))
        model = standin.model(folder / "model")

        def edit(text: str) -> str:
            whole = yaml.safe_load(text)
            whole["model"]["source"] = str(model)
            whole["parallel"] = {"tensor": 1, "pipeline": hosts}
            whole["hosts"] = {host.name: {"address": host.address, "gpus": 1} for host in lab.hosts}
            return yaml.safe_dump(whole, sort_keys=False)

        yield Fleet(describe(lab, folder, edit), folder)
    finally:
        lab.down()
