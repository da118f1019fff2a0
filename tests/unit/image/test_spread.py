"""Who may give the image: hosts that let those who lack it in."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from vllm_cluster.image.hosts import Hosts
from vllm_cluster.image.spread import Terms, Wanted, _Run

# What a firewall that drops looks like to timeout(1).
_TIMEOUT = """#!/bin/bash
shift
[[ "$*" = *127.0.0.9* ]] && exit 124
exec "$@"
"""


class Here:
    """A host's shell on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def shell(self, line: str) -> str:
        argv = ["sh", "-c", f'PATH="{self.folder}:$PATH"\n{line}']
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("addresses", "reached"),
    [
        ({"a": "127.0.0.1", "b": "127.0.0.2"}, ["a", "b"]),
        ({"a": "127.0.0.9", "b": "127.0.0.2"}, ["b"]),
        ({"a": "127.0.0.9", "b": "127.0.0.9"}, []),
    ],
)
def test_a_holder_whose_firewall_drops_a_spare_host_is_not_asked(
    tmp_path: Path, addresses: dict[str, str], reached: list[str]
) -> None:
    """Nobody listens on any of them: refused is an answer, and dropped is none."""
    (tmp_path / "timeout").write_text(_TIMEOUT)
    (tmp_path / "timeout").chmod(0o755)
    remotes: Any = {"c": Here(tmp_path)}
    hosts = Hosts(remotes, addresses, 0)
    run = _Run(Wanted("image", None, "reference"), Terms(1, "", 0), hosts)
    assert run._in_reach(["a", "b"], ["c"]) == reached
