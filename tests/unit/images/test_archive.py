"""Image archives: the same files give the same ID, and what is written is what Docker reads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from images.archive import Layer, image_config, write_image, write_layer


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "opt/app/b").mkdir(parents=True)
    (root / "opt/app/a.txt").write_text("alpha")
    (root / "opt/app/b/run").write_text("#!/bin/sh\n")
    (root / "opt/app/b/run").chmod(0o755)
    (root / "opt/app/link").symlink_to("b/run")
    (root / "opt/app/twin").hardlink_to(root / "opt/app/a.txt")
    (root / "etc").mkdir()
    return root


def image(layer: Layer, out: Path, env: str = "A=1") -> str:
    config = image_config([layer], config={"Env": [env]}, comments=["all of it"])
    return write_image(out, [layer], config, "name:tag")


def test_a_layer_does_not_show_when_its_files_were_written(tree: Path, tmp_path: Path) -> None:
    first = write_layer(tree, tmp_path / "1.tar")
    for path in tree.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert write_layer(tree, tmp_path / "2.tar").sha256 == first.sha256


def test_a_layer_does_not_show_in_which_order_its_files_were_made(
    tree: Path, tmp_path: Path
) -> None:
    first = write_layer(tree, tmp_path / "1.tar", ["opt/app/b"])
    (tree / "opt/app/b/run").rename(tree / "run")
    for name in ("zzz", "000"):
        (tree / "opt/app/b" / name).touch()
    (tree / "run").rename(tree / "opt/app/b/run")
    assert write_layer(tree, tmp_path / "2.tar", ["opt/app/b"]).sha256 != first.sha256
    for name in ("zzz", "000"):
        (tree / "opt/app/b" / name).unlink()
    assert write_layer(tree, tmp_path / "3.tar", ["opt/app/b"]).sha256 == first.sha256


@pytest.mark.parametrize("change", ["content", "mode", "name"])
def test_a_layer_shows_every_change_of_a_file(tree: Path, tmp_path: Path, change: str) -> None:
    first = write_layer(tree, tmp_path / "1.tar")
    file = tree / "opt/app/b/run"
    if change == "content":
        file.write_text("#!/bin/ash")
    elif change == "mode":
        file.chmod(0o700)
    else:
        file.rename(file.with_name("Run"))
    assert write_layer(tree, tmp_path / "2.tar").sha256 != first.sha256


def test_a_layer_holds_links_modes_and_numeric_owners(tree: Path, tmp_path: Path) -> None:
    layer = write_layer(tree, tmp_path / "layer.tar", ["opt/app"])
    with tarfile.open(layer.path) as tar:
        found = {member.name: member for member in tar.getmembers()}
    assert sorted(found) == [
        "opt/app", "opt/app/a.txt", "opt/app/b", "opt/app/b/run", "opt/app/link", "opt/app/twin",
    ]  # fmt: skip
    assert found["opt/app/link"].linkname == "b/run"
    assert found["opt/app/twin"].islnk()
    assert found["opt/app/twin"].linkname == "opt/app/a.txt"
    assert found["opt/app/b/run"].mode == 0o755
    assert {(member.uname, member.gname) for member in found.values()} == {("", "")}


def test_a_layer_names_itself_by_the_digest_of_its_tar(tree: Path, tmp_path: Path) -> None:
    layer = write_layer(tree, tmp_path / "layer.tar")
    digest = subprocess.run(
        ["sha256sum", layer.path], check=True, capture_output=True, text=True
    ).stdout.split()[0]
    assert (layer.sha256, layer.size_bytes) == (digest, layer.path.stat().st_size)


def test_a_missing_path_is_refused_and_not_left_out(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        write_layer(tree, tmp_path / "layer.tar", ["opt/app", "opt/gone"])


def test_an_archive_is_laid_out_as_docker_load_expects(tree: Path, tmp_path: Path) -> None:
    layer = write_layer(tree, tmp_path / "layer.tar")
    image_id = image(layer, tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as tar:
        content = {
            member.name: extracted.read()
            for member in tar.getmembers()
            if (extracted := tar.extractfile(member))
        }
    (entry,) = json.loads(content["manifest.json"])
    assert entry["RepoTags"] == ["name:tag"]
    config = content[entry["Config"]]
    assert image_id == f"sha256:{hashlib.sha256(config).hexdigest()}"
    (packed,) = entry["Layers"]
    assert json.loads(config)["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(content[packed]).hexdigest()}"
    ]


def test_the_id_follows_the_layers_and_the_configuration(tree: Path, tmp_path: Path) -> None:
    layer = write_layer(tree, tmp_path / "1.tar")
    first = image(layer, tmp_path / "a.tar")
    assert image(layer, tmp_path / "b.tar") == first
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert image(layer, tmp_path / "c.tar", env="A=2") != first
    (tree / "etc/new").touch()
    assert image(write_layer(tree, tmp_path / "2.tar"), tmp_path / "d.tar") != first
