"""The CPU image on a lab host and as a tree: what it says it is, it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images import chroot
from images.archive import image_config, write_image, write_layer
from images.cpu import plugin, recipe
from tests.lab.names import lab_name
from vllm_cluster.lab import Lab
from vllm_cluster.lab.host import Host

NAME = lab_name("t-image")
CURRENT = recipe.IMAGE_CACHE / "current"
ENV = {"PATH": recipe.PATH, "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def described() -> Any:
    return json.loads((CURRENT / "image.json").read_text())


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A host with Docker and the image."""
    lab = Lab.up(1, name=NAME)
    try:
        made = lab.host("node-a")
        made.ssh("apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y docker.io")
        with (CURRENT / "image.tar").open("rb") as archive:
            subprocess.run(
                ["ssh", "-F", str(lab.layout.ssh_config), "node-a", "docker load"],
                stdin=archive, check=True,
            )  # fmt: skip
        yield made
    finally:
        lab.down()


def inside(host: Host, reference: str, *argv: str) -> str:
    done = host.ssh(f"docker run --rm --network none {reference} {' '.join(argv)}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_docker_gives_it_the_id_that_was_computed(host: Host, described: Any) -> None:
    found = host.ssh(f"docker image inspect --format '{{{{.Id}}}}' {described['reference']}")
    assert found.stdout.strip() == described["id"]


def test_it_holds_the_versions_that_it_states(host: Host, described: Any) -> None:
    reference = described["reference"]
    assert inside(host, reference, "ray", "--version") == f"ray, version {described['ray']}"
    assert inside(host, reference, "vllm", "--version").endswith(f"{described['vllm']}+cpu")
    assert inside(host, reference, "python3", "--version") == f"Python {described['python']}"


def test_vllm_chooses_the_platform_that_takes_ray(host: Host, described: Any) -> None:
    code = "'from vllm.platforms import current_platform as p; print(type(p), p.ray_device_key)'"
    said = inside(host, described["reference"], "python3", "-c", f'"{code[1:-1]}"')
    assert said == "<class 'ray_cpu_platform.platform.RayCpuPlatform'> GPU"


def test_it_carries_nothing_of_the_machine_that_built_it() -> None:
    root = CURRENT / "rootfs"
    assert not list((root / "etc/apt").iterdir())
    assert not (root / "etc/hostname").exists()
    assert (root / "etc/machine-id").read_text() == ""
    found = subprocess.run(
        ["grep", "--recursive", "--files-with-matches", "--fixed-strings",
         str(recipe.REPOSITORY), root / "etc", root / "opt/vllm/bin", root / "var/lib"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (found.stdout, found.returncode) == ("", 1)


@pytest.fixture
def copied() -> Iterator[Path]:
    """The tree, copied into memory: other inodes, other times, another place."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        subprocess.run(
            ["cp", "--archive", "--no-preserve=timestamps", f"{CURRENT}/rootfs", folder / "root"],
            check=True,
        )
        yield folder / "root"
    finally:
        shutil.rmtree(folder)


def test_the_same_tree_gives_the_same_image_again(
    copied: Path, tmp_path: Path, described: Any
) -> None:
    site = copied / recipe.SITE_PACKAGES.lstrip("/")
    added = [site / plugin.NAME, site / f"{plugin.NAME}-{recipe.VLLM}.dist-info"]
    paths = [str(path.relative_to(copied)) for path in added]
    top = write_layer(copied, tmp_path / "plugin.tar", paths)
    for path in added:
        shutil.rmtree(path)
    environment = recipe.ENVIRONMENT.lstrip("/")
    middle = write_layer(copied, tmp_path / "environment.tar", [environment])
    shutil.rmtree(copied / environment)
    bottom = write_layer(copied, tmp_path / "system.tar")
    layers = [bottom, middle, top]
    config = image_config(layers, config=recipe.CONFIG, comments=recipe.LAYERS)
    assert write_image(tmp_path / "image.tar", layers, config, "again:1") == described["id"]


def test_a_program_in_the_tree_can_change_nothing_of_it_and_leaves_nothing(tmp_path: Path) -> None:
    root = (CURRENT / "rootfs").resolve()
    before = Path("/proc/self/mountinfo").read_text()
    command = chroot.command(
        root,
        ["sh", "-c", "touch /opt/x; echo $?; touch /tmp/x /root/x; echo $?; ip -o link; env; ps"],
        env=ENV, own_network=True,
    )  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    said = done.stdout.splitlines()
    assert said[:2] == ["1", "0"]
    assert len([line for line in said if ": <LOOPBACK,UP" in line]) == 1
    assert not [line for line in said if "BROADCAST" in line]
    assert {line for line in said if "=" in line and line.split("=")[0].isupper()} >= {
        f"PATH={recipe.PATH}"
    }
    assert "HOME" not in {line.split("=")[0] for line in said}
    assert not (root / "opt/x").exists()
    assert not (root / "tmp/x").exists()
    assert Path("/proc/self/mountinfo").read_text() == before
