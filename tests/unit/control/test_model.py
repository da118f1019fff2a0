"""The manifest of a model on this machine, hashed once and remembered."""

import hashlib
import os
from pathlib import Path

import pytest

from vllm_cluster.control import model
from vllm_cluster.control.model_directory import directory
from vllm_cluster.spec import load

PROD = Path(__file__).parents[3] / "inventories" / "prod.yaml"


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


def test_a_model_without_a_revision_is_named_after_its_content(source: Path) -> None:
    first = model.manifest_of(source, "m")
    assert first.revision.startswith("local-")
    (source / "sub" / "a.safetensors").write_bytes(b"weight$")
    assert model.manifest_of(source, "m").revision != first.revision
    assert model.manifest_of(source, "m", "v1").revision == "v1"


def test_a_hubs_cache_is_the_model_once(tmp_path: Path) -> None:
    cache, commit = tmp_path / "models--o--n", "c" * 40
    (cache / "blobs").mkdir(parents=True)
    (cache / "blobs" / "1").write_bytes(b"{}")
    snapshot = cache / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/1")
    text = PROD.read_text().replace("  source: /srv/models/Llama-3.3-70B-Instruct",
                                    f"  revision: {commit}\n  source: {cache}")  # fmt: skip
    (tmp_path / "prod.yaml").write_text(text)
    found = directory(load(tmp_path / "prod.yaml"))
    assert found == snapshot
    manifest = model.manifest_of(found, "m", commit)
    assert [(f.path, f.size_bytes) for f in manifest.files] == [("config.json", 2)]

    (tmp_path / "prod.yaml").write_text(text.replace(commit, "d" * 40))
    with pytest.raises(ValueError, match=f"no revision {'d' * 40} .it has: {commit}"):
        directory(load(tmp_path / "prod.yaml"))


def test_a_manifest_of_a_host_is_remembered_by_its_identity(source: Path) -> None:
    manifest = model.manifest_of(source, "m")
    assert model.remembered("0" * 64) is None
    model.remember(manifest.encoded, manifest.identity)
    assert model.remembered(manifest.identity) == manifest
    with pytest.raises(ValueError, match="the manifest's hash"):
        model.remember(manifest.encoded, "0" * 64)
