"""The layers of an archive on this machine, sent to one host, each once."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from vllm_cluster.image.archive import Archive, layer
from vllm_cluster.weights.agent.image import CONFIG, layer_path
from vllm_cluster.weights.remote import Remote, RemoteError

_BLOCK_BYTES = 1 << 20
_TELL_S = 10.0


def push(archive: Archive, carried: Sequence[str], remote: Remote, into: str) -> list[Any]:
    """Bring configuration and `carried` layers (diff IDs) into the directory `into` of a host.

    A layer that is there whole is not sent, one that is there in part is sent from there on.
    Returns what must be there now, as the agent's list of files. Raises RemoteError, ValueError
    for an archive that is damaged.
    """
    directory = shlex.quote(into)
    listed = f"mkdir -p {directory}/layers && cd {directory} && find . -type f -printf '%s %P\\n'"
    have = {}
    for line in remote.shell(listed).splitlines():
        size, _, name = line.partition(" ")
        have[name] = int(size)
    sender = _Sender(remote, into, sum(archive.sizes[diff_id] for diff_id in carried))
    digest = archive.id.removeprefix("sha256:")
    remote.shell(f"cat > {directory}/{CONFIG}", archive.config)
    files = [{"path": CONFIG, "size": len(archive.config), "sha256": digest}]
    for diff_id in carried:
        name = layer_path(diff_id)
        if name not in have:
            have[name] = sender.send(archive, diff_id, have.get(f"{name}.part", 0))
        digest = diff_id.removeprefix("sha256:")
        files.append({"path": name, "size": have[name], "sha256": digest})
    return files


class _Sender:
    """Sends layer after layer and says how far it is."""

    def __init__(self, remote: Remote, into: str, total_bytes: int) -> None:
        self._remote = remote
        self._into = into
        self._total_bytes = total_bytes
        self._sent_bytes = 0
        self._began = self._told = time.monotonic()

    def send(self, archive: Archive, diff_id: str, there: int) -> int:
        """Send a layer from byte `there` on; its size. It gets its name when all of it is there."""
        path = shlex.quote(f"{self._into}/{layer_path(diff_id)}")
        digest, size = hashlib.sha256(), 0
        command = self._remote.reach(f"cat >> {path}.part")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            try:
                with layer(archive, diff_id) as stream:
                    while data := stream.read(_BLOCK_BYTES):
                        digest.update(data)
                        self._write(process, data[max(0, there - size) :])
                        size += len(data)
                _, told = process.communicate()
            except BrokenPipeError:
                told = process.stderr.read() if process.stderr else b""
                process.wait()
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise RemoteError(f"{self._remote.name}: {told.decode(errors='replace').strip()}")
        if f"sha256:{digest.hexdigest()}" != diff_id:
            self._remote.shell(f"rm -f {path}.part")
            raise ValueError(
                f"{archive.path}: the layer {diff_id} in it is damaged: its content is "
                f"sha256:{digest.hexdigest()}; write the archive anew with `docker save`"
            )
        self._remote.shell(f"mv {path}.part {path}")
        return size

    def _write(self, process: subprocess.Popen[bytes], data: bytes) -> None:
        if data and process.stdin:
            process.stdin.write(data)
        self._sent_bytes += len(data)
        now = time.monotonic()
        if now - self._told >= _TELL_S:
            self._told = now
            rate = self._sent_bytes / (now - self._began)
            left_s = max(0, self._total_bytes - self._sent_bytes) / rate if rate else 0
            self._remote.say(
                f"sent {self._sent_bytes / 2**30:.2f} of {self._total_bytes / 2**30:.2f} GiB, "
                f"{rate / 1e6:.1f} MB/s from this machine, {left_s:.0f} s left"
            )
