"""What the firewall fact reads of firewalld, beside one that says what it was told to say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from vllm_cluster.facts.firewall import Firewall, FirewallState
from vllm_cluster.operations.firewall import _obstacle

ZONES = """docker (active)
  target: ACCEPT
  interfaces: docker0

public (default, active)
  target: default
  interfaces: eth0

trusted (active)
  target: ACCEPT
  interfaces: eth1

home
  target: ACCEPT
"""


def test_a_zone_in_use_that_lets_in_all_is_refused_with_its_fix(tmp_path: Path) -> None:
    program = tmp_path / "firewall-cmd"
    (tmp_path / "zones").write_text(ZONES)
    program.write_text(
        "#!/bin/sh\ncase $1 in --state) echo running ;;"
        f" --list-all-zones) cat {tmp_path}/zones ;; esac\n"
    )
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = subprocess.run(
        ["sh", "-c", str(Firewall().command())], env=env, capture_output=True, text=True, check=True
    )
    found = Firewall().process(said.stdout.splitlines())
    assert found.open_zones == ("trusted",)
    assert "--zone=trusted --set-target=default" in _obstacle(found)
    assert _obstacle(FirewallState(firewalld=True)) == ""
