"""Another image or other arguments on a cluster that serves: judged, and back where it fails."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab import standin
from tests.lab.conftest import with_standin
from tests.lab.harness import BIN, DEPLOY, ROOT, Cluster, await_true
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
NAME = lab_name("t-upgrade")
HOSTS = ("node-a", "node-b")
UNITS = (("node-a", "ray-head"), ("node-a", "vllm"), ("node-b", "ray-worker"))
KEPT = "/var/lib/vllm-cluster/generations"


@dataclass
class Served:
    """A cluster of stand-ins, and ways to change and look at it."""

    cluster: Cluster
    folder: Path

    def image(self, name: str, **how: Any) -> str:
        return str(standin.write(self.cluster.lab, self.folder / f"{name}.tar", **how))

    def describe(self, archive: str | None = None, /, **args: Any) -> None:
        """The description with another image or further arguments of vLLM."""
        whole = yaml.safe_load((self.folder / "original.yaml").read_text())
        if archive:
            whole["image"]["archive"] = archive
        whole["serve"]["args"] = {**whole["serve"]["args"], **args}
        self.cluster.description.write_text(yaml.safe_dump(whole, sort_keys=False))

    def refused(self, *options: str) -> str:
        done = self.cluster.pyinfra("-y", "--fail-percent", "0", *options)
        said = done.stdout + done.stderr
        assert done.returncode == 1, said
        assert "Traceback" not in said, said
        return said

    def running(self) -> dict[str, str]:
        """Container -> when it started and from which image, by Docker itself."""
        inspect = "docker container inspect -f '{{.State.StartedAt}} {{.Image}}'"
        return {unit: self.cluster.on(host, f"{inspect} {unit}").strip() for host, unit in UNITS}

    def images(self) -> set[str]:
        return {words.split()[1] for words in self.running().values()}

    def files(self) -> str:
        look = "sha256sum /etc/systemd/system/{vllm,ray-head,ray-worker}.service"
        return "".join(
            self.cluster.on(host, f"{look} /etc/vllm-cluster/cluster.env 2>/dev/null", check=False)
            for host in HOSTS
        )

    def active(self) -> bool:
        return all(
            self.cluster.on(host, f"systemctl is-active {unit}", check=False).strip() == "active"
            for host, unit in UNITS
        )

    def current(self) -> dict[str, str]:
        """Host -> the identity that it serves, read without the tool."""
        return {host: json.loads(self.cluster.on(host, f"cat {KEPT}/current.json"))["id"]
                for host in HOSTS}  # fmt: skip

    def pending(self) -> bool:
        look = f"test -e {KEPT}/pending.json && echo yes"
        return any("yes" in self.cluster.on(host, look, check=False) for host in HOSTS)

    def status(self) -> str:
        done = subprocess.run(
            [BIN / "vllm-cluster", "status", str(self.cluster.description)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout

    def rollback(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "vllm-cluster", "rollback", *words, str(self.cluster.description)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    lab = Lab.up(2, name=NAME)
    try:
        folder = tmp_path_factory.mktemp("upgrade")
        made = with_standin(folder, lab)
        (folder / "original.yaml").write_text(made.description.read_text())
        made.apply()
        yield Served(made, folder)
    finally:
        lab.down()


@pytest.fixture(autouse=True)
def _whole(served: Served) -> Iterator[None]:
    """Each test begins and ends with a cluster that serves, and no switch."""
    await_true("all is active", served.active, 120)
    assert not served.pending()
    yield
    served.describe()


def test_an_upgrade_replaces_all_in_order_and_a_second_run_changes_nothing(
    served: Served,
) -> None:
    before, first = served.running(), served.current()
    served.describe(served.image("second", versions={"torch": "2.14.0"}))
    served.cluster.apply()
    after = served.running()
    assert not served.images() & {words.split()[1] for words in before.values()}
    assert set(served.current().values()).isdisjoint(first.values())
    assert len(set(served.current().values())) == 1
    assert served.cluster.apply()["totals"]["success"] == 0
    assert served.running() == after
    assert "serving generation 2" in served.status()
    # The old image is kept: it is the way back.
    old = next(iter(before.values())).split()[1]
    for host in HOSTS:
        served.cluster.on(host, f"docker image inspect {old}")


def test_rollback_goes_back_and_the_left_description_is_not_applied_again_unasked(
    served: Served,
) -> None:
    served.describe(served.image("second", versions={"torch": "2.14.0"}))
    served.cluster.apply()
    new, now = served.images(), served.current()
    done = served.rollback()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not served.images() & new
    assert set(served.current().values()).isdisjoint(now.values())
    assert served.active()
    assert "generation 2 left because rolled back by" in served.status()

    before = served.running()
    said = served.refused()
    assert "which was left: rolled back by" in said
    assert "RETRY=yes" in said
    assert served.running() == before

    done = served.cluster.pyinfra("-y", "--data", "retry=yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert served.images() == new
    done = served.rollback("--to", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert served.rollback("--to", "1").returncode == 1
    assert served.rollback("--to", "99").returncode == 1


def failing(served: Served, kind: str) -> str:
    """Describe what fails in the way of `kind`; a word of the reason."""
    if kind == "server exits":
        served.describe(served.image("broken", broken="RuntimeError: the weights are of cheese"))
        return "RuntimeError: the weights are of cheese"
    served.describe(served.image("slow", tokens_per_s=7.0))
    return "7.0 tokens/s on node-a, 100.0 before: 93 % slower"


@pytest.mark.parametrize("kind", ["server exits", "slower"])
def test_what_starts_badly_is_taken_back_by_itself_and_the_reason_kept(
    served: Served, kind: str
) -> None:
    images, files, current = served.images(), served.files(), served.current()
    reason = failing(served, kind)
    said = served.refused()
    assert reason in said
    assert "The old one serves again, after" in said
    assert served.active()
    assert served.images() == images
    assert served.files() == files
    assert served.current() == current
    assert not served.pending()
    shown = served.status()
    assert "serving generation 1" in shown
    assert "failed because" in shown
    assert reason in shown

    before = served.running()
    assert "which failed: " in served.refused()
    assert served.running() == before


def without_change(served: Served, kind: str) -> str:
    if kind == "no Ray":
        served.describe(served.image("no-ray", lacks=("ray",)))
        return "Ray in the image"
    served.describe(None, **{"max-num-seqs": 13})
    return "refused: vLLM refuses: ValueError: 13 is too few"


@pytest.mark.parametrize("kind", ["no Ray", "arguments"])
def test_what_can_be_seen_before_the_switch_interrupts_nothing(served: Served, kind: str) -> None:
    before, files = served.running(), served.files()
    reason = without_change(served, kind)
    said = served.refused()
    assert reason in said
    assert served.running() == before
    assert served.files() == files
    assert not served.pending()


@pytest.mark.parametrize("when", ["killed", "rebooted"])
def test_a_switch_whose_run_dies_is_undone_by_the_hosts(
    served: Served, when: str, tmp_path: Path
) -> None:
    """The new one never answers, and nobody is there to see it."""
    images, current = served.images(), served.current()
    # Its server runs, and no completion comes: the run waits.
    served.describe(served.image("mute", versions={"torch": "2.15.0"}, mute=True))
    out = (tmp_path / "said").open("w")
    run = subprocess.Popen(
        [BIN / "pyinfra", "-y", "--fail-percent", "0", str(served.cluster.inventory), DEPLOY],
        cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    look = "docker container inspect -f '{{.Image}}' vllm 2>/dev/null"
    await_true(
        "the new one is tried",
        lambda: (
            (found := served.cluster.on("node-a", look, check=False).strip()) != ""
            and found not in images
        ),
        180,
    )
    assert served.pending()
    told = "[node-a] vllm.service: starting for "
    await_true("it tells how far it is", lambda: told in (tmp_path / "said").read_text(), 60)
    if when == "rebooted":
        # A run that sees its hosts go down would judge the new one by that.
        run.send_signal(signal.SIGSTOP)
        for host in HOSTS:
            served.cluster.lab.host(host).power_off()
    run.send_signal(signal.SIGKILL)
    run.wait()
    if when == "rebooted":
        for host in HOSTS:
            served.cluster.lab.host(host).power_on()
    await_true("the old one is back", lambda: not served.pending() and served.active(), 180)
    assert served.images() == images
    assert served.current() == current
    assert "interrupted because" in served.status()
