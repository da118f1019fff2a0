"""A machine that is installed anew, played by a real sshd on loopback with changing keys.

sshd runs in the lab's root file system, of which no host is booted: seconds, not minutes.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from images import chroot
from tests.lab.harness import await_true
from tests.unit.seed.cases import PROD, section
from vllm_cluster.control.context import Context
from vllm_cluster.lab import rootfs
from vllm_cluster.lab.layout import Layout, project_root
from vllm_cluster.plan import make_plan
from vllm_cluster.rebuild import begun, known_hosts
from vllm_cluster.rebuild.machine import look
from vllm_cluster.rebuild.run import Rebuild, RebuildError
from vllm_cluster.seed import host_key
from vllm_cluster.spec import loads

pytestmark = [pytest.mark.lab]
START_S = 60


def pair(file: Path) -> str:
    """A new key pair at `file`; its public half as `TYPE BASE64`."""
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)]
    subprocess.run(argv, check=True)
    return " ".join(file.with_suffix(".pub").read_text().split()[:2])


class Place:
    """A port of this machine where one system after the other answers, and a description of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        layout = Layout("none", project_root())
        self.root = rootfs.ensure(layout.cache, "bookworm", print)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        pair(folder / "client")
        self.known_hosts = folder / "known_hosts"
        self.said: list[str] = []
        self.describe("")

    def describe(self, more: str) -> None:
        """Write the description: node-b is on this port; `more` is added to it."""
        text = PROD.read_text().replace(
            "ssh:\n  user: ops              # root, or a user that may `sudo -n`\n"
            "  key: ~/.ssh/id_ed25519\n  port: 22\n",
            f"ssh: {{user: root, key: {self.folder}/client, port: {self.port}, "
            f"known_hosts_file: {self.known_hosts}}}\n",
        )
        text = text.replace(
            "address: 192.168.1.11\n", "address: 192.168.1.11\n    ssh: localhost\n"
        )
        (self.folder / "prod.yaml").write_text(text + more)

    def work(self, answer: Callable[[str], bool] = lambda _: False, **more: bool) -> Rebuild:
        """A rebuild of node-b that waits a moment for each thing."""
        file = self.folder / "prod.yaml"
        cluster = loads(file.read_text(), file)
        plan = make_plan(cluster.description)
        known = Context(cluster, plan, None, None, None, {})
        return Rebuild(
            known, plan.hosts["node-b"], self.said.append, answer, more.get("accept", False), 5.0
        )

    @contextmanager
    def system(self, key: Path, *, deployed: bool = False, lets_in: bool = True) -> Iterator[None]:
        """Let sshd answer with the host key in `key`."""
        allowed = "/srv/client.pub" if lets_in else "/dev/null"
        config = self.folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey /srv/{key.name}\nPidFile none\n"
            f"AuthorizedKeysFile {allowed}\nUsePAM no\nStrictModes no\n"
            f"ForceCommand echo {'deployed' if deployed else 'bare'}\n"
        )
        start = "mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f /srv/sshd_config"
        argv = chroot.command(
            self.root, ["sh", "-c", start], env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            binds={self.folder: "/srv"},
        )  # fmt: skip
        with (self.folder / "sshd.log").open("w") as log:
            process = subprocess.Popen(argv, stderr=log)
        try:
            await_true("sshd", self._answers, START_S)
            yield
        finally:
            process.kill()
            process.wait()
            await_true("the port closed", lambda: not self._answers(), START_S)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_looking_tells_what_is_there_and_leaves_no_trace(place: Place, tmp_path: Path) -> None:
    key = pair(tmp_path / "a")
    work = place.work()
    cluster, host = work.known.cluster, work.host
    assert look(cluster, host).state == "silent"
    with place.system(tmp_path / "a"):
        assert (look(cluster, host).key, look(cluster, host).state) == (key, "bare")
    with place.system(tmp_path / "a", deployed=True):
        assert look(cluster, host).state == "deployed"
    with place.system(tmp_path / "a", lets_in=False):
        seen = look(cluster, host)
        assert (seen.key, seen.state) == (key, "closed")
        assert "Permission denied" in seen.words
    assert not place.known_hosts.exists()


def test_a_new_key_is_shown_beside_the_old_and_taken_when_it_is_asked_for(
    place: Place, tmp_path: Path
) -> None:
    old, new = pair(tmp_path / "a"), pair(tmp_path / "b")
    place.known_hosts.write_text(f"[localhost]:{place.port},mine {old}\n")
    asked: list[str] = []

    def yes(question: str) -> bool:
        asked.append(question)
        return True

    with place.system(tmp_path / "b"):
        place.work(yes).await_machine("", None)
    assert len(asked) == 1
    said = "\n".join(place.said)
    assert f"known until now as {known_hosts.fingerprint(old)}" in said
    assert f"answers with ssh-ed25519 {known_hosts.fingerprint(new)}" in said
    assert place.known_hosts.read_text() == f"[localhost]:{place.port},mine {new}\n"


def test_a_key_that_is_not_taken_changes_nothing(place: Place, tmp_path: Path) -> None:
    old = pair(tmp_path / "a")
    pair(tmp_path / "b")
    place.known_hosts.write_text(f"[localhost]:{place.port} {old}\n")
    with (
        place.system(tmp_path / "b"),
        pytest.raises(RebuildError, match="its new key was not taken"),
    ):
        place.work().await_machine("", None)
    assert place.known_hosts.read_text() == f"[localhost]:{place.port} {old}\n"


@pytest.mark.parametrize(
    ("deployed", "lets_in", "known", "words"),
    [
        (True, True, True, "its old system still answers"),
        (False, False, False, "lets us not in yet"),
    ],
)
def test_it_waits_and_says_for_what(
    place: Place, tmp_path: Path, *, deployed: bool, lets_in: bool, known: bool, words: str
) -> None:
    key = pair(tmp_path / "a")
    if known:
        place.known_hosts.write_text(f"[localhost]:{place.port} {key}\n")
    with (
        place.system(tmp_path / "a", deployed=deployed, lets_in=lets_in),
        pytest.raises(RebuildError, match="not there within 5 s"),
    ):
        place.work(accept=True).await_machine("", None)
    assert any(words in line for line in place.said), place.said


def test_with_the_seeds_key_no_other_is_taken_and_nobody_is_asked(
    place: Place, tmp_path: Path
) -> None:
    place.describe(section("debian-12", "  host_key: seed\n"))
    work = place.work(accept=True)
    expected = work.expected_key()
    assert expected == work.expected_key(), "a seed that was handed out stays good"
    pair(tmp_path / "other")
    with place.system(tmp_path / "other"), pytest.raises(RebuildError, match="not there within"):
        work.await_machine(expected, None)
    assert any("not its seed's key" in line for line in place.said)
    made = host_key.kept(work.known.cluster, "node-b")
    assert made is not None
    carried = tmp_path / "carried"
    carried.write_text(made.private)
    carried.chmod(0o600)
    unasked = place.work()
    with place.system(carried):
        unasked.await_machine(expected, None)
    assert known_hosts.keys(unasked.place()) == [expected]
    begun.end(unasked.known.cluster, "node-b")
    assert unasked.expected_key() != expected, "the next system must be told from this one"


def test_an_interrupted_rebuild_goes_on_with_the_half_deployed_system(
    place: Place, tmp_path: Path
) -> None:
    pair(tmp_path / "a")
    with place.system(tmp_path / "a"):
        place.work(accept=True).await_machine("", None)
    with place.system(tmp_path / "a", deployed=True):
        place.work().await_machine("", None)
