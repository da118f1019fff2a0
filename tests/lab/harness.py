"""A cluster on lab hosts for tests: a description of its own, real pyinfra, real requests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_cluster.lab import Lab

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
DEPLOY = "deploys/cluster.py"


@dataclass(frozen=True)
class Cluster:
    """A lab and the description that makes a cluster of it."""

    lab: Lab
    inventory: Path

    @property
    def description(self) -> Path:
        """The YAML file."""
        return self.inventory.with_suffix(".yaml")

    @property
    def secrets(self) -> dict[str, str]:
        """The generated secrets by name."""
        folder = self.inventory.parent / ".secrets" / "lab"
        return {path.name: path.read_text().strip() for path in folder.iterdir() if path.is_file()}

    def pyinfra(self, *options: str, deploy: str = DEPLOY) -> subprocess.CompletedProcess[str]:
        """Run pyinfra as a person does, from the project's root; its exit code is not judged."""
        return subprocess.run(
            [BIN / "pyinfra", *options, str(self.inventory), deploy],
            cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self, *options: str, deploy: str = DEPLOY) -> subprocess.Popen[str]:
        """Run pyinfra in the background, its words in one stream."""
        return subprocess.Popen(
            [BIN / "pyinfra", *options, str(self.inventory), deploy],
            cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def apply(self, deploy: str = DEPLOY) -> dict[str, Any]:
        """Deploy; pyinfra's own results. Fails with its words when a host failed."""
        done = self.pyinfra("--json", "--yes", deploy=deploy)
        assert done.returncode == 0, done.stdout + done.stderr
        results = json.loads(done.stdout)["results"]
        assert isinstance(results, dict)
        return results

    def planned(self, deploy: str = DEPLOY) -> dict[str, list[str]]:
        """What a dry run would change: operation -> hosts."""
        done = self.pyinfra("--json", "--dry", deploy=deploy)
        assert done.returncode == 0, done.stdout + done.stderr
        plan = json.loads(done.stdout)["plan"]
        return {op["name"]: op["hosts_with_change"] for op in plan if op["hosts_with_change"]}

    def api(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 60) -> Any:
        """Ask the API from an address that is no host of the cluster; None when it does not."""
        key = self.secrets["api_key"]
        curl = ["curl", "--silent", "--fail-with-body", "--max-time", str(timeout_s)]
        curl += ["--header", f"Authorization: Bearer {key}"]
        if body is not None:
            curl += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
        url = f"http://{self.lab.host('node-a').address}:8000{path}"
        done = self.lab.outside(*curl, url, timeout_s=timeout_s + 10)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def complete(self, prompt: str, tokens: int) -> Any:
        """A greedy completion: the answer's first choice, or None when none came."""
        body = {
            "model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        answer = self.api("/v1/completions", body)
        return answer["choices"][0] if answer else None

    def on(self, host: str, command: str, *, check: bool = True) -> str:
        """The output of a root shell's command on a host."""
        done = self.lab.host(host).ssh(command)
        assert not check or done.returncode == 0, f"{host}: {command}: {done.stderr}"
        return done.stdout


def describe(lab: Lab, folder: Path, edit: Callable[[str], str] = str) -> Cluster:
    """A description for `lab` in `folder`: the example for the lab, with this lab's paths."""
    text = (ROOT / "inventories" / "lab.yaml").read_text()
    text = text.replace("../.lab/lab/", f"{lab.layout.directory}/")
    text = text.replace("../.cache/", f"{ROOT}/.cache/")
    (folder / "lab.yaml").write_text(edit(text))
    (folder / "lab.py").write_text((ROOT / "inventories" / "lab.py").read_text())
    return Cluster(lab, folder / "lab.py")


def await_true(what: str, check: Callable[[], bool], timeout_s: float) -> float:
    """Seconds until `check` holds; fails after `timeout_s`."""
    began = time.monotonic()
    while not check():
        assert time.monotonic() - began < timeout_s, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.5)
    return time.monotonic() - began


def remote_commands(output: str) -> dict[str, int]:
    """Remote commands by host in the output of `pyinfra -vv`."""
    counts: dict[str, int] = {}
    for host in re.findall(r"^\[([^\]]+)\] >>> ", output, re.MULTILINE):
        counts[host] = counts.get(host, 0) + 1
    return counts
