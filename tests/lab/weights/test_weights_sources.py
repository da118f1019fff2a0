"""From a hub, a host's directory, the control machine's directory: placed, or one clear message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub_server import LARGE_BYTES, Hub, Repo
from vllm_cluster.weights import sources
from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.build import agent_bytes

pytestmark = pytest.mark.lab

COMMIT = "f" * 40
OTHER = "e" * 40
SHARD = "model-00001-of-00001.safetensors"
FILES = {
    ".gitattributes": b"*.safetensors filter=lfs",
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    SHARD: bytes(range(256)) * 3000,
    "original/consolidated.00.pth": b"x" * 50_000,
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({"org/m": Repo(COMMIT, dict(FILES))}) as running:
        yield running


class Host:
    """A host's root, its agent, and a Python that has huggingface_hub as the image's has."""

    def __init__(self, base: Path) -> None:
        base.mkdir(exist_ok=True)
        self.base = base
        self.root = base / "root"
        self.agent = base / "agent.pyz"
        self.agent.write_bytes(agent_bytes())

    def obtain(
        self, *given: dict[str, Any], revision: str = COMMIT
    ) -> subprocess.CompletedProcess[str]:
        wish = sources.make_wish("org/m", revision, given, host="node-a", reserve_bytes=0)
        agent = [sys.executable, str(self.agent), "--root", str(self.root), "--json"]
        return subprocess.run(
            [*agent, "obtain", "--wish", "-"],
            input=wish, text=True, capture_output=True, check=False,
        )  # fmt: skip

    def from_hub(
        self, hub: Hub, *, revision: str = COMMIT, token: str | None = None
    ) -> dict[str, Any]:
        """The hub source with the container taken off: the same command, this Python."""
        into = f"{self.root}/.staging/org--m@{revision}.download"
        environment = [f"HF_ENDPOINT={hub.endpoint}", f"HF_HOME={self.base}/hf"]
        environment += ["HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_OFFLINE=0"]
        if token:
            path = self.base / "token"
            path.write_text(token)
            environment.append(f"HF_TOKEN_PATH={path}")
        argv = ["env", *environment, sys.executable, *sources.download_argv(
            sources.Hub("org/m"), revision, root=str(self.root), agent=str(self.agent), into=into
        )]  # fmt: skip
        return {"kind": "download", "argv": argv, "into": into}

    @property
    def placed(self) -> Path:
        return self.root / "org--m" / COMMIT


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def content(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    found = {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}
    return {name: data for name, data in found.items() if not name.startswith(".vllm-cluster")}


def nothing_visible(host: Host) -> None:
    assert not os.path.lexists(host.placed)
    assert list((host.root / ".store").iterdir()) == []


WANTED = {name: FILES[name] for name in ("config.json", SHARD)}


def test_a_model_from_the_hub_is_placed_as_published(host: Host, hub: Hub) -> None:
    done = host.obtain(host.from_hub(hub))
    assert done.returncode == 0, done.stderr
    assert content(host.placed) == WANTED
    assert list((host.root / ".staging").iterdir()) == [], "the download is not kept beside it"


def test_the_same_model_from_hub_and_directory_is_one_identity(
    host: Host, hub: Hub, tmp_path: Path
) -> None:
    first = json.loads(host.obtain(host.from_hub(hub)).stdout)
    other = Host(tmp_path / "other")
    second = other.obtain(sources.from_host(sources.HostDirectory(str(host.placed))))
    assert json.loads(second.stdout)["identity"] == first["identity"]


def test_a_revision_that_does_not_exist_is_one_sentence(host: Host, hub: Hub) -> None:
    done = host.obtain(host.from_hub(hub, revision=OTHER), revision=OTHER)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"org/m has no revision {OTHER} at {hub.endpoint}")
    assert len(done.stderr.strip().splitlines()) == 1
    nothing_visible(host)


def test_a_repository_that_does_not_exist_is_one_sentence(host: Host, hub: Hub) -> None:
    hub.repos.clear()
    done = host.obtain(host.from_hub(hub))
    assert f"{hub.endpoint} has no repository org/m, or it is private" in done.stderr
    nothing_visible(host)


@pytest.mark.parametrize("token", [None, "hf_someone_else"])
def test_a_gated_model_without_the_right_token_is_one_sentence(
    host: Host, hub: Hub, token: str | None
) -> None:
    hub.repos["org/m"].gated, hub.repos["org/m"].token = True, "hf_right"
    done = host.obtain(host.from_hub(hub, token=token))
    assert done.returncode == 1
    assert f"org/m is gated: accept its terms at {hub.endpoint}/org/m" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    nothing_visible(host)


def test_a_gated_model_with_the_token_is_placed_and_the_token_is_nowhere(
    host: Host, hub: Hub
) -> None:
    hub.repos["org/m"].gated, hub.repos["org/m"].token = True, "hf_right"
    done = host.obtain(host.from_hub(hub, token="hf_right"))
    assert done.returncode == 0, done.stderr
    found = subprocess.run(["grep", "-r", "hf_right", host.root], capture_output=True, check=False)
    assert found.stdout == b""
    assert "hf_right" not in done.stdout + done.stderr


@pytest.mark.parametrize("path", ["config.json", SHARD])
def test_a_byte_that_came_wrong_from_the_hub_is_not_placed_but_fetched_anew(
    host: Host, hub: Hub, path: str
) -> None:
    def flip(name: str, _offset: int, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if name == path and data else data

    hub.damage = flip
    done = host.obtain(host.from_hub(hub))
    assert done.returncode == 1
    assert path in done.stderr
    assert "damaged" in done.stderr
    nothing_visible(host)
    hub.damage = None
    again = host.obtain(host.from_hub(hub))
    assert again.returncode == 0, again.stderr
    assert content(host.placed) == WANTED


def test_a_download_that_broke_off_goes_on_without_what_it_has(host: Host, hub: Hub) -> None:
    class CutError(OSError):
        pass

    def cut(name: str, _offset: int, data: bytes) -> bytes:
        if name == SHARD:
            raise CutError("the line is cut")
        return data

    hub.damage = cut
    assert host.obtain(host.from_hub(hub)).returncode == 1
    nothing_visible(host)
    hub.damage = None
    hub.seen.clear()
    done = host.obtain(host.from_hub(hub))
    assert done.returncode == 0, done.stderr
    assert content(host.placed) == WANTED
    fetched = {path for method, path in hub.seen if method == "GET" and "config.json" in path}
    assert fetched == set(), "config.json was there already"


def test_the_next_source_is_taken_when_one_fails(host: Host, hub: Hub) -> None:
    missing = sources.from_host(sources.HostDirectory("/nowhere/models"))
    done = host.obtain(missing, host.from_hub(hub))
    assert done.returncode == 0, done.stderr
    assert content(host.placed) == WANTED
    state = json.loads((host.root / ".jobs" / f"org--m@{COMMIT}.adopt.json").read_text())
    assert state["notes"] == ["node-a: /nowhere/models: no such directory"]


def test_when_no_source_gives_it_each_reason_is_told(host: Host, hub: Hub) -> None:
    hub.repos.clear()
    missing = sources.from_host(sources.HostDirectory("/nowhere/models"))
    done = host.obtain(missing, host.from_hub(hub))
    assert done.returncode == 1
    assert "node-a: no source gave the model: /nowhere/models: no such directory" in done.stderr
    assert "has no repository org/m" in done.stderr


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    directory = tmp_path / "mine"
    directory.mkdir()
    for name, data in WANTED.items():
        (directory / name).write_bytes(data)
    return directory


def push(host: Host, pushed: sources.Push) -> None:
    target = sources.pushed_dir(str(host.root), "org/m", COMMIT)
    argv = sources.rsync_argv(pushed, ["ssh"], f"x:{target}")
    argv = [target + "/" if word.startswith("x:") else word for word in argv]  # no ssh in between
    subprocess.run(argv, input=sources.rsync_names(pushed), check=True)


def test_a_directory_of_the_control_machine_is_pushed_and_moved_into_place(
    host: Host, mine: Path
) -> None:
    pushed = sources.look(mine, COMMIT)
    push(host, pushed)
    sources.check_unchanged(pushed)
    source = sources.from_push(pushed, root=str(host.root), model="org/m", revision=COMMIT)
    done = host.obtain(source)
    assert done.returncode == 0, done.stderr
    assert content(host.placed) == WANTED
    assert list((host.root / ".staging").iterdir()) == []


def test_a_push_that_is_not_complete_is_not_placed(host: Host, mine: Path) -> None:
    pushed = sources.look(mine, COMMIT)
    push(host, pushed)
    target = Path(sources.pushed_dir(str(host.root), "org/m", COMMIT))
    os.truncate(target / SHARD, LARGE_BYTES)
    done = host.obtain(
        sources.from_push(pushed, root=str(host.root), model="org/m", revision=COMMIT)
    )
    assert done.returncode == 1
    assert f"{SHARD}: has 10000 bytes, published with 768000" in done.stderr
    nothing_visible(host)


def test_a_file_that_changes_while_it_is_pushed_is_named(mine: Path) -> None:
    pushed = sources.look(mine, COMMIT)
    (mine / SHARD).write_bytes(b"another")
    with pytest.raises(WeightsError, match=f"{SHARD}: changed in .* while it was pushed"):
        sources.check_unchanged(pushed)


def test_the_container_gets_the_token_as_a_file_alone() -> None:
    hub = sources.Hub("org/m", token_file="/etc/vllm-cluster/hf-token")
    made = sources.from_hub(
        hub, COMMIT, root="/data/models", agent="/opt/agent.pyz", image="vllm@sha256:0"
    )
    argv = made["argv"]
    assert argv[:4] == ["docker", "run", "--rm", "--pull=never"]
    assert "/etc/vllm-cluster/hf-token:/run/secrets/hf-token:ro" in argv
    assert argv[argv.index("vllm@sha256:0") + 1] == "/run/weights-agent.pyz"
    assert not any("HF_TOKEN=" in word for word in argv)
