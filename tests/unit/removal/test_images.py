"""The names of kept images go, and no image goes with them that people had before us."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_cluster.plan import paths
from vllm_cluster.removal import look
from vllm_cluster.removal.action import Removal
from vllm_cluster.removal.decide import Options, decide
from vllm_cluster.removal.look import Found

# A Docker whose images are lines `ID NAME…` of a file; the last name takes its image along.
_DOCKER = """#!{python} -IS
import pathlib, sys
file = pathlib.Path("{images}")
images = [line.split() for line in file.read_text().splitlines()]
words = sys.argv[1:]
rows = [(one[0], name) for one in images for name in one[1:]]
def split(name):
    return name.split("@")[0] + ":<none>" if "@" in name else name
if words[:2] == ["image", "ls"]:
    form = words[words.index("--format") + 1]
    only = words[-1] if words[-1] != form else ""
    for id, name in rows:
        repository, tag = split(name).rsplit(":", 1)
        if not only or repository == only:
            row = form.replace("{{{{.ID}}}}", id).replace("{{{{.Repository}}}}", repository)
            print(row.replace("{{{{.Tag}}}}", tag))
elif words[:2] == ["image", "inspect"]:
    found = [one for one in images if set(one) & set(words[2:])]
    if not found:
        sys.exit("No such image")
    for one in found:
        print(one[0] if "{{{{.Id}}}}" in words else "\\n".join(one[1:]))
elif words[:2] == ["image", "rm"]:
    found = [one for one in images if words[2] in one]
    if not found:
        sys.exit("No such image")
    found[0].remove(words[2])
    images = [one for one in images if len(one) > 1]
    file.write_text("".join(" ".join(one) + "\\n" for one in images))
elif words[0] == "info":
    print("/var/lib/docker")
"""
KEPT = paths.KEPT_IMAGES


class Machine:
    """A host with a Docker, a record and generations of its own."""

    def __init__(self, at: Path) -> None:
        self.at, self.images = at, at / "images"
        (at / "bin").mkdir()
        docker = at / "bin" / "docker"
        docker.write_text(_DOCKER.format(python=sys.executable, images=self.images))
        docker.chmod(0o755)

    def has(self, images: list[str], *, brought: list[str], ran: dict[str, str]) -> None:
        """`ran`: the image by the generation that ran it."""
        self.images.write_text("".join(f"{line}\n" for line in images))
        journal = Path(f"{self.at}{paths.OWNED}/journal")
        journal.parent.mkdir(parents=True)
        lines = ["file\t/etc/x\tabsent", *(f"image\t{name}\tabsent" for name in brought)]
        journal.write_text("".join(f"{line}\n" for line in lines))
        for name, image in ran.items():
            file = Path(f"{self.at}{paths.GENERATIONS}/{name}/generation.json")
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps({"id": name, "image": image, "number": 1}))

    def bash(self, text: str, *words: str) -> subprocess.CompletedProcess[str]:
        for path in (paths.CONFIG, paths.STATE):
            text = text.replace(path, f"{self.at}{path}")
        path = f"{self.at}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return subprocess.run(
            ["bash", *words, "-s"], input=text, capture_output=True, text=True, check=False,
            env={"PATH": path},
        )  # fmt: skip

    def look(self) -> Found:
        return look.parse(self.bash(look.script()).stdout.splitlines())

    def down(self) -> str:
        """What was left alone, in the command's words."""
        removal = decide(self.look(), "/srv", Options())
        said = []
        for action in removal.actions:
            if "image" in action.what:
                done = self.bash(action.shell, "-e")
                assert done.returncode in {0, 9}, done.stderr
                if done.returncode:
                    said.append(done.stdout.strip())
        return "\n".join(said)

    @property
    def left(self) -> list[str]:
        return self.images.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def whats(removal: Removal) -> list[str]:
    return [action.what for action in removal.actions if "image" in action.what]


@pytest.mark.parametrize("theirs", ["vllm:1", "registry/vllm@sha256:aa"])
def test_an_image_that_was_there_before_loses_our_name_alone(machine: Machine, theirs: str) -> None:
    machine.has([f"i1 {theirs} {KEPT}:g1 {KEPT}:g2"], brought=[], ran={"g1": theirs, "g2": theirs})
    found = machine.look()
    assert not any(KEPT in name for name in found.foreign)
    assert whats(decide(found, "/srv", Options())) == [
        f"names of kept images: {KEPT}:g1, {KEPT}:g2"
    ]
    assert machine.down() == ""
    assert machine.left == [f"i1 {theirs}"]
    assert machine.down() == ""


def test_an_image_of_theirs_that_only_our_name_is_left_of_stays(machine: Machine) -> None:
    """Its own name was moved to a newer one: the next name that goes takes it along."""
    images = [f"i1 {KEPT}:g1", f"i2 vllm:latest {KEPT}:g2", f"i3 ours:1 {KEPT}:g3"]
    ran = {"g1": "vllm:latest", "g2": "vllm:latest", "g3": "ours:1"}
    machine.has(images, brought=["ours:1"], ran=ran)
    assert set(machine.look().foreign) == {f"image {KEPT}:g1", "image vllm:latest"}
    assert machine.down().startswith(f"{KEPT}:g1: the only name")
    assert machine.left == [f"i1 {KEPT}:g1", "i2 vllm:latest"]


def test_images_that_we_brought_go_under_whatever_name(machine: Machine) -> None:
    """The older one lost its name to the newer."""
    images = [f"i1 {KEPT}:g1", f"i2 ours:latest {KEPT}:g2"]
    machine.has(images, brought=["ours:latest"], ran=dict.fromkeys(("g1", "g2"), "ours:latest"))
    assert machine.look().foreign == ()
    assert machine.down() == ""
    assert machine.left == []


def test_where_no_generation_tells_whose_an_image_is_it_stays(machine: Machine) -> None:
    machine.has([f"i1 {KEPT}:g1"], brought=["ours:1"], ran={})
    assert machine.look().foreign == (f"image {KEPT}:g1",)
    assert KEPT in machine.down()
    assert machine.left == [f"i1 {KEPT}:g1"]
