"""A registry of one image: the reading half of the distribution API, as Docker asks it.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md (end-1, end-2, end-3), the
manifest of image manifest version 2, schema 2. `python3 registry.py PORT FOLDER` serves FOLDER on
127.0.0.1; FOLDER/log gets a line for every request.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.lab.images.made import Made
    from vllm_cluster.lab.host import Host

PORT = 5055
NAME = "lab/made"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def fill(made: Made, folder: Path) -> str:
    """Write the blobs and the manifest; the reference NAME@sha256:… under which it is found."""
    folder.mkdir(parents=True)
    layers = [_blob(folder, gzip.compress(tar, 1, mtime=0), _LAYER) for tar in made.layers]
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": _MANIFEST,
        "config": _blob(folder, made.config, _CONFIG), "layers": layers,
    }).encode()  # fmt: skip
    digest = _blob(folder, manifest, _MANIFEST)["digest"]
    return f"127.0.0.1:{PORT}/{NAME}@{digest}"


def _blob(folder: Path, data: bytes, kind: str) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    return {"mediaType": kind, "size": len(data), "digest": f"sha256:{digest}"}


@contextmanager
def serving(host: Host, folder: Path) -> Iterator[Path]:
    """On this host's loopback, where no other host reaches it; the log."""
    argv = ["ip", "netns", "exec", host.place.namespace, sys.executable, __file__, str(PORT)]
    with subprocess.Popen([*argv, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield folder / "log"
        finally:
            process.terminate()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        with (self.folder / "log").open("a") as log:
            log.write(f"{self.command} {self.path}\n")
        parts = self.path.strip("/").split("/")
        data, kind = b"{}", "application/json"
        if parts != ["v2"]:
            blob = self.folder / parts[-1].removeprefix("sha256:")
            known = "/".join(parts[1:-2]) == NAME and parts[-2] in {"manifests", "blobs"}
            if not known or not blob.is_file():
                self.send_error(404)
                return
            data = blob.read_bytes()
            kind = _MANIFEST if parts[-2] == "manifests" else "application/octet-stream"
        self.send_response(200)
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(data).hexdigest()}")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Our own log is the file."""


if __name__ == "__main__":
    _Handler.folder = Path(sys.argv[2])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler)
    print("listening", flush=True)
    server.serve_forever()
