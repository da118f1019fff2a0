"""A container image as a tree of files, out of Docker's store and into it.

The tree is `config.json`, whose SHA-256 is the image's ID, and `layers/<diff ID>.tar`, one for each
layer that some host lacks; a layer's diff ID is the SHA-256 of its tar (image-spec v1.2,
config.md). `docker save` and `docker load` are the ways in and out that every release has. With a
graph driver `docker load` opens a layer's file only where the store lacks the layer
(moby, image/tarexport/load.go), so an archive may leave out what a host has.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from vllm_cluster.weights.agent.errors import WeightsError
from vllm_cluster.weights.agent.hub import EXPECTED_SUFFIX
from vllm_cluster.weights.agent.layout import write_file, write_json

CONFIG = "config.json"
LAYERS = "layers"
_DOCKER = "docker"
_BLOCK_BYTES = 1 << 20
_SEND_BYTES = 16 << 20
_HEX = re.compile(r"[0-9a-f]{64}")
_BLOBS = "blobs/sha256/"

Count = Callable[[int], None]


def layer_path(diff_id: str) -> str:
    """Where a layer's tar lies in the tree."""
    return f"{LAYERS}/{diff_id.removeprefix('sha256:')}.tar"


def pull(reference: str, tag: str, into: Path) -> None:
    """Let Docker pull `reference` (NAME@sha256:…) and give it a name that stays; note its ID.

    Docker itself fetches only the layers that it lacks. Raises WeightsError with its last words.
    """
    _docker("pull", "--quiet", reference)
    _docker("tag", reference, tag)
    image_id = _docker("image", "inspect", "--format", "{{.Id}}", tag)
    into.mkdir(parents=True, exist_ok=True)
    write_json(into / "image.json", {"id": image_id, "reference": reference})
    _expect(into)


def export(image: str, layers: list[str], into: Path, *, seed: bool) -> None:
    """Bring `layers` (diff IDs) of `image` into the tree `into`, and its configuration.

    With `seed` the tree is one that is about to be fetched: the configuration is another image's
    and stays out, and nothing is said of the tree as a whole. Every layer is hashed on its way and
    only gets its name when it is right; what is there already is not written again.
    Raises WeightsError when Docker fails or the image lacks a layer.
    """
    (into / LAYERS).mkdir(parents=True, exist_ok=True)
    for path in into.rglob("*.part"):
        path.unlink()
    wanted = {diff_id.removeprefix("sha256:") for diff_id in layers}
    missing = {digest for digest in wanted if not (into / layer_path(digest)).exists()}
    config = "" if seed else _docker("image", "inspect", "--format", "{{.Id}}", image)
    config = config.removeprefix("sha256:")
    if missing or (config and not (into / CONFIG).exists()):
        with _saved(image) as archive:
            for member in archive:
                if member.isfile():
                    _take(archive, member, config, missing, into)
    if missing or (config and not (into / CONFIG).exists()):
        lacks = ", ".join(sorted(missing)) or "its configuration"
        raise WeightsError(f"`docker save {image}` gave no {lacks}")
    if not seed:
        _expect(into)


def load(tree: Path, tags: list[str], count: Count) -> str:
    """Give the image of `tree` to Docker under `tags`; its ID. Docker shows it whole or not at all.

    `count` hears the bytes given. Raises WeightsError with Docker's words.
    """
    config = (tree / CONFIG).read_bytes()
    image_id = hashlib.sha256(config).hexdigest()
    layers = [str(d).removeprefix("sha256:") for d in json.loads(config)["rootfs"]["diff_ids"]]
    manifest = [
        {
            "Config": f"{image_id}.json",
            "RepoTags": tags or None,
            "Layers": [f"{digest}/layer.tar" for digest in layers],
        }
    ]
    with tempfile.TemporaryFile("w+", errors="replace") as told:
        with subprocess.Popen(
            [_DOCKER, "load", "--quiet"], stdin=subprocess.PIPE, stdout=told, stderr=told
        ) as process:
            assert process.stdin is not None  # noqa: S101  (asked for above)
            with suppress(BrokenPipeError), process.stdin as pipe:
                _put(pipe, f"{image_id}.json", config)
                for digest in dict.fromkeys(layers):
                    with suppress(FileNotFoundError), (tree / layer_path(digest)).open("rb") as tar:
                        _send(pipe, f"{digest}/layer.tar", tar, count)
                _put(pipe, "manifest.json", json.dumps(manifest).encode())
                pipe.write(bytes(2 * tarfile.BLOCKSIZE))
        _judge(process.returncode, told, "load")
    found = _docker("image", "inspect", "--format", "{{.Id}}", f"sha256:{image_id}")
    if found != f"sha256:{image_id}":
        raise WeightsError(f"Docker took the image sha256:{image_id} for {found}")
    return found


def layer_bytes(tree: Path) -> int:
    """What load() is going to give to Docker."""
    return sum(path.stat().st_size for path in (tree / LAYERS).glob("*.tar"))


@contextmanager
def _saved(image: str) -> Iterator[tarfile.TarFile]:
    """`docker save` as it comes; a failure of Docker's wins over that of a cut archive."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as told,
        subprocess.Popen([_DOCKER, "save", image], stdout=subprocess.PIPE, stderr=told) as process,
    ):
        assert process.stdout is not None  # noqa: S101  (asked for above)
        broken = ""
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|", bufsize=_BLOCK_BYTES) as archive:
                yield archive
            while process.stdout.read(_BLOCK_BYTES):
                pass  # the end of the archive, or Docker complains of a closed pipe
        except tarfile.TarError as exc:
            broken = str(exc)
        except BaseException:
            process.terminate()
            raise
        process.wait()
        _judge(process.returncode, told, f"save {image}")
        if broken:
            raise WeightsError(f"`docker save {image}` gave no archive: {broken}")


def _take(
    archive: tarfile.TarFile, member: tarfile.TarInfo, config: str, missing: set[str], into: Path
) -> None:
    """Keep the member if it is wanted. Docker before 25 names a layer's directory by an ID of its
    own, so that only its hash says which it is; later ones name the file by its hash."""
    name = member.name.removesuffix(".json").removeprefix(_BLOBS)
    if config and name == config:
        data = _stream(archive, member).read()
        if hashlib.sha256(data).hexdigest() == config:
            write_file(into / CONFIG, data)
    elif name in missing or (missing and member.name.endswith("/layer.tar")):
        fresh = into / LAYERS / "layer.part"
        digest = _copy(_stream(archive, member), fresh)
        if digest in missing:
            fresh.rename(into / layer_path(digest))
            missing.discard(digest)
        else:
            fresh.unlink()


def _stream(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(member)
    if stream is None:
        raise WeightsError(f"{member.name} in the archive of `docker save` is no file")
    return stream


def _copy(stream: IO[bytes], path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as copy:
        while data := stream.read(_BLOCK_BYTES):
            digest.update(data)
            copy.write(data)
    return digest.hexdigest()


def _put(pipe: IO[bytes], name: str, data: bytes) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(data)
    pipe.write(header.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE))


def _send(pipe: IO[bytes], name: str, file: IO[bytes], count: Count) -> None:
    header = tarfile.TarInfo(name)
    header.size = os.fstat(file.fileno()).st_size
    pipe.write(header.tobuf(tarfile.GNU_FORMAT))
    pipe.flush()
    offset = 0
    while offset < header.size:
        sent = os.sendfile(pipe.fileno(), file.fileno(), offset, _SEND_BYTES)
        if sent == 0:
            raise WeightsError("was cut while Docker read it", file=name)
        offset += sent
        count(sent)
    pipe.write(bytes(-header.size % tarfile.BLOCKSIZE))


def _expect(tree: Path) -> None:
    """Say what the tree must hold, as a hub's metadata does; the hashes are known by name."""
    files: list[dict[str, Any]] = []
    for path in sorted(p for p in tree.rglob("*") if p.is_file()):
        name = path.relative_to(tree).as_posix()
        known = path.stem if _HEX.fullmatch(path.stem) else None
        files.append({"path": name, "size": path.stat().st_size, "sha256": known})
    write_json(tree.with_name(tree.name + EXPECTED_SUFFIX), {"files": files})


def _docker(*words: str) -> str:
    with tempfile.TemporaryFile("w+", errors="replace") as told:
        done = subprocess.run(
            [_DOCKER, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=told, text=True, check=False,
        )  # fmt: skip
        _judge(done.returncode, told, " ".join(words))
    return done.stdout.strip()


def _judge(code: int, told: IO[str], what: str) -> None:
    if code == 0:
        return
    told.seek(0)
    lines = [line.strip() for line in told if line.strip()]
    raise WeightsError(f"`docker {what}` failed: {lines[-1] if lines else f'exit status {code}'}")
