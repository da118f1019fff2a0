"""The manifest of a model on this machine, hashed once and remembered."""

import hashlib
import os
from pathlib import Path

import pytest

from vllm_cluster.control import model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    (directory / "sub").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "sub" / "a.safetensors").write_bytes(b"weights")
    (directory / ".git").mkdir()
    (directory / ".git" / "x").write_text("not a part of the model")
    (directory / ".hidden").write_text("nor this")
    return directory


def test_a_manifest_has_every_visible_file_with_its_hash(source: Path) -> None:
    manifest = model.manifest_of(source, "m")
    assert {(f.path, f.size_bytes, f.sha256) for f in manifest.files} == {
        ("config.json", 2, hashlib.sha256(b"{}").hexdigest()),
        ("sub/a.safetensors", 7, hashlib.sha256(b"weights").hexdigest()),
    }


def test_a_changed_file_changes_the_identity(source: Path) -> None:
    before = model.manifest_of(source, "m").identity
    (source / "sub" / "a.safetensors").write_bytes(b"weight$")
    assert model.manifest_of(source, "m").identity != before


def test_an_unchanged_model_is_not_read_again(source: Path) -> None:
    before = model.manifest_of(source, "m").identity
    shard = source / "sub" / "a.safetensors"
    stat = shard.stat()
    shard.write_bytes(b"WEIGHTS")
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert model.manifest_of(source, "m").identity == before


def test_links_into_a_hub_cache_are_followed(source: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(b"linked")
    (source / "b.safetensors").symlink_to(blob)
    files = {f.path: f.sha256 for f in model.manifest_of(source, "m").files}
    assert files["b.safetensors"] == hashlib.sha256(b"linked").hexdigest()


def test_a_directory_without_config_is_no_model(source: Path) -> None:
    (source / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json"):
        model.manifest_of(source, "m")
