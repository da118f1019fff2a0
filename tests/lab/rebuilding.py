"""`vllm-cluster rebuild` as a person runs it, beside a machine that is being installed."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.harness import BIN, Cluster, await_true
from vllm_cluster.lab import Lab


def own_known_hosts(lab: Lab, folder: Path) -> Callable[[str], str]:
    """An edit that gives the description a known_hosts file that the lab does not rewrite."""
    theirs, ours = lab.layout.known_hosts, folder / "known_hosts"

    def edit(text: str) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(theirs, ours)
        changed = text.replace(f"known_hosts_file: {theirs}", f"known_hosts_file: {ours}")
        assert changed != text
        return changed

    return edit


@dataclass
class Run:
    """A rebuild under way: what it has said, and its end."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that it has said."""
        return "".join(self.said)

    def await_words(self, words: str, timeout_s: float = 300) -> None:
        """Wait until it has said so, and is not over."""
        await_true(
            f"{words!r} in:\n{self.text}",
            lambda: words in self.text or self.process.poll() is not None,
            timeout_s,
        )
        assert words in self.text, self.text

    def end(self, timeout_s: float = 1200) -> int:
        """Its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(self.text) from None


def rebuild(cluster: Cluster, host: str, *options: str, answers: str = "") -> Run:
    """Start a rebuild; `answers` are what the person types."""
    argv = [
        str(BIN / "vllm-cluster"),
        "rebuild",
        str(cluster.description),
        "--host",
        host,
        *options,
    ]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdin is not None
    process.stdin.write(answers)
    process.stdin.close()
    run = Run(process)
    threading.Thread(target=_listen, args=(run,), daemon=True).start()
    return run


def _listen(run: Run) -> None:
    assert run.process.stdout is not None
    for line in run.process.stdout:
        run.said.append(line)


def command(cluster: Cluster, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A command of ours over the description; its exit code is not judged."""
    argv = [str(BIN / "vllm-cluster"), name, str(cluster.description), *options]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
