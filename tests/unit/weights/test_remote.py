"""The control side against real agents, reached through a shell instead of SSH."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from vllm_cluster.weights.build import agent_bytes
from vllm_cluster.weights.fanout import Host, Model, make_jobs, token_of
from vllm_cluster.weights.remote import Remote, RemoteError, progress, spread
from vllm_cluster.weights.sources import HostDirectory, from_host, make_wish

MODEL, REVISION = "lab/model", "r1"


def remote(tmp_path: Path, name: str, said: list[str] | None = None) -> Remote:
    return Remote(
        name=name,
        path=str(tmp_path / name / "bin" / "agent.pyz"),
        root=str(tmp_path / name / "root"),
        reach=lambda line: ["sh", "-c", line],
        say=(said if said is not None else []).append,
    )


def test_the_agent_is_brought_once_and_again_when_it_is_another(tmp_path: Path) -> None:
    one = remote(tmp_path, "node-a")
    one.install()
    path = Path(one.path)
    assert path.read_bytes() == agent_bytes()
    before = path.stat().st_ino
    one.install()
    assert path.stat().st_ino == before
    path.write_text("an older one")
    one.install()
    assert path.read_bytes() == agent_bytes()


def test_what_an_agent_refuses_is_told_once_with_its_host(tmp_path: Path) -> None:
    one = remote(tmp_path, "node-a")
    one.install()
    with pytest.raises(RemoteError, match=r"^node-a: .*no job nothing on this host$"):
        one.call("status", "--key", "nothing")


def test_a_host_without_the_program_is_named(tmp_path: Path) -> None:
    one = remote(tmp_path, "node-a")
    with pytest.raises(RemoteError, match=r"^node-a: .*agent.pyz"):
        one.call("list")


def test_two_hosts_end_with_the_same_and_one_that_fails_is_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
    said: list[str] = []
    remotes = {name: remote(tmp_path, name, said) for name in ("node-a", "node-b", "node-c")}
    for one in remotes.values():
        one.install()
    wish = make_wish(
        MODEL, REVISION, [from_host(HostDirectory(str(source)))], host="node-a", reserve_bytes=0
    )
    identity = remotes["node-a"].call("obtain", "--wish", "-", stdin=wish)["identity"]
    hosts = [Host(name, f"127.0.0.{n}") for n, name in enumerate(remotes, 1)]
    jobs = make_jobs(
        Model(MODEL, REVISION, identity), hosts[:1], hosts[1:], token=token_of("s", identity),
        port=7599, options={"reserve_bytes": 0, "linger_s": 0.5},
    )  # fmt: skip
    jobs["node-c"] = json.dumps({**json.loads(jobs["node-c"]), "reserve_bytes": 1 << 60})
    ends = spread(remotes, jobs, frozenset({"node-a"}))
    assert isinstance(ends["node-c"], RemoteError)
    assert "GiB free" in str(ends["node-c"])
    for name in ("node-a", "node-b"):
        end = ends[name]
        assert not isinstance(end, RemoteError)
        assert end["phase"] == "done"
    placed = tmp_path / "node-b" / "root" / "lab--model" / REVISION
    done = subprocess.run(
        ["diff", "-r", "-x", ".vllm-cluster", source, placed], check=False, capture_output=True
    )
    assert done.returncode == 0
    assert any("of 0.00 GiB" in line for line in said)


def test_a_line_says_bytes_rate_source_and_time_left() -> None:
    state = {
        "phase": "fetching", "have_bytes": 2**30, "total_bytes": 2**32, "rate_bytes_s": 1.25e9,
        "from": "node-b", "left_s": 2.6, "passed_by": {"node-c": "refused"},
    }  # fmt: skip
    assert progress(state) == (
        "fetching, 1.00 of 4.00 GiB, 1250.0 MB/s, from node-b, 3 s left, node-c passed by (refused)"
    )


def test_the_token_of_a_fan_out_is_the_same_in_every_run_and_tells_nothing() -> None:
    assert token_of("secret", "a" * 64) == token_of("secret", "a" * 64)
    assert token_of("secret", "a" * 64) != token_of("other", "a" * 64)
    assert token_of("secret", "a" * 64) != token_of("secret", "b" * 64)
