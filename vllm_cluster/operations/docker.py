"""Docker images."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

from pyinfra.api.command import FunctionCommand, QuoteString, StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host

from vllm_cluster.operations import owned, ssh

_PROGRESS_S = 10


class ImageId(FactBase[str]):
    """The ID of `image` on the host; empty when it is not there or Docker does not run."""

    @staticmethod
    def default() -> str:
        return ""

    def command(self, image: str) -> StringCommand:
        inspect = "docker image inspect --format '{{.Id}}'"
        return StringCommand(inspect, QuoteString(image), "2>/dev/null || true")

    def process(self, output: list[str]) -> str:
        return output[0].strip() if output else ""


@operation()
def image_present(
    image: str, archive: Path | None, pull: str | None
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """Bring `image` (an ID, or NAME@sha256:…) to the host: from `archive` here, or by `pull`."""
    if host.get_fact(ImageId, image=image):
        host.noop(f"{image} is there")
        return
    host.log(f"{image}: missing")
    yield StringCommand(owned.first("image", image, "absent"))
    if archive is not None:
        yield FunctionCommand(send_image, (archive,), {})
    if pull is not None:
        yield StringCommand("docker pull --quiet", QuoteString(pull))
    yield StringCommand("docker image inspect --format '{{.Id}}'", QuoteString(image))


def send_image(state: State, host: Host, archive: Path) -> bool:  # noqa: ARG001  pyinfra's form
    """Stream `archive` into `docker load` on the host; nothing is stored on the way."""
    command = ssh.ssh_command(host, "docker", "load", "--quiet")
    size_bytes = archive.stat().st_size
    began = told = time.monotonic()
    with archive.open("rb") as file:
        process = subprocess.Popen(
            command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        while process.poll() is None:
            time.sleep(0.2)
            if time.monotonic() - told >= _PROGRESS_S:
                told = time.monotonic()
                # ssh shares our file position: what it has read is what it has sent.
                _tell(host, file.fileno(), size_bytes, told - began)
        words = process.stdout.read() if process.stdout else ""
    if process.returncode:
        return ssh.failed(host, f"loading {archive.name}", command, words)
    rate = size_bytes / 2**20 / (time.monotonic() - began)
    host.log(f"{archive.name}: {size_bytes / 2**30:.1f} GiB at {rate:.0f} MiB/s")
    return True


def _tell(host: Host, descriptor: int, size_bytes: int, seconds: float) -> None:
    done = os.lseek(descriptor, 0, os.SEEK_CUR)
    rate = done / seconds
    left_s = (size_bytes - done) / rate if rate else 0
    host.log(
        f"{done / 2**30:.1f} of {size_bytes / 2**30:.1f} GiB, {rate / 2**20:.0f} MiB/s, "
        f"{left_s:.0f} s left"
    )
