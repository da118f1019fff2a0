"""The ID of an image archive, read without Docker."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.lab.images.made import TAG, Made, make, write
from vllm_cluster.image.archive import image_id, layer, read

DIGEST = "ab" * 32


def archive(path: Path, manifest: object) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, body in (("layer.tar", b"x"), ("manifest.json", json.dumps(manifest).encode())):
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    return path


@pytest.mark.parametrize("name", [f"{DIGEST}.json", f"blobs/sha256/{DIGEST}"])
def test_the_id_is_the_digest_of_the_configuration(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "image.tar", [{"Config": name, "Layers": []}])
    assert image_id(path) == f"sha256:{DIGEST}"


def test_an_archive_of_two_images_is_refused(tmp_path: Path) -> None:
    entry = {"Config": f"{DIGEST}.json"}
    path = archive(tmp_path / "image.tar", [entry, entry])
    with pytest.raises(ValueError, match="exactly one image"):
        image_id(path)


def test_a_configuration_without_digest_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "image.tar", [{"Config": "latest.json"}])
    with pytest.raises(ValueError, match="by digest"):
        image_id(path)


@pytest.mark.parametrize("manifest", [["a name"], [None], [[]], {}])
def test_a_manifest_of_another_shape_is_refused(tmp_path: Path, manifest: object) -> None:
    path = archive(tmp_path / "image.tar", manifest)
    with pytest.raises(ValueError, match=r"image\.tar"):
        image_id(path)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_text("not a tar")
    with pytest.raises(ValueError, match="not a `docker save` archive"):
        image_id(path)


def test_a_tar_without_manifest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w"):
        pass
    with pytest.raises(ValueError, match=r"no manifest\.json"):
        image_id(path)


@pytest.mark.parametrize("packed", [False, True])
def test_layers_are_read_as_their_diff_ids_count_them(tmp_path: Path, packed: bool) -> None:
    made = make([(1, 5000), (2, 70000)])
    path = write(made, tmp_path / "image.tar")
    if packed:
        zipped = Made(made.id, made.diff_ids, made.config, tuple(map(gzip.compress, made.layers)))
        path = write(zipped, tmp_path / "packed.tar")
    found = read(path)
    assert (found.id, found.layers, found.tags) == (made.id, made.diff_ids, (TAG,))
    for diff_id, content in zip(made.diff_ids, made.layers, strict=True):
        with layer(found, diff_id) as stream:
            assert stream.read() == content


def test_a_configuration_that_is_not_the_named_one_is_refused(tmp_path: Path) -> None:
    made = make([(1, 5000)])
    other = Made(made.id, made.diff_ids, made.config + b" ", made.layers)
    with pytest.raises(ValueError, match="is not that of sha256:"):
        read(write(other, tmp_path / "image.tar"))


def test_layers_that_nothing_here_can_unpack_are_told(tmp_path: Path) -> None:
    made = make([(1, 5000)])
    other = Made(made.id, made.diff_ids, made.config, (b"\x28\xb5\x2f\xfd and so on",))
    found = read(write(other, tmp_path / "image.tar"))
    with pytest.raises(ValueError, match="zstd"), layer(found, made.diff_ids[0]):
        pass
