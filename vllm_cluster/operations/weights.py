"""The model on a host: copied beside its place, verified, made visible in one rename."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Generator
from pathlib import Path

from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import host

from vllm_cluster.operations import owned, ssh
from vllm_cluster.operations.refuse import refuse
from vllm_cluster.weights.manifest import META_DIR, Manifest

# What a full disk would break first is not the copy but Ray's and Docker's logs.
RESERVE_BYTES = 2**30
_DAY_S = 86400


class Placed(FactBase[dict[str, str]]):
    """What lies at `path`: names and sizes of files, `@manifest` its digest, `@free` bytes."""

    @staticmethod
    def default() -> dict[str, str]:
        return {}

    def command(self, path: str) -> StringCommand:
        quoted = shlex.quote(path)
        parent = shlex.quote(posixpath.dirname(path))
        staged = f"du -sB1 {shlex.quote(_staging(path))} 2>/dev/null | cut -f1"
        return StringCommand(
            f"[ ! -d {quoted} ] || (cd {quoted} && find . -path ./{META_DIR} -prune -o "
            "-not -type d -printf '%y%s %P\\n'; "
            f'echo "@ @manifest $(sha256sum {META_DIR}/manifest.json 2>/dev/null)"); '
            f'd={parent}; while [ ! -d "$d" ]; do d=$(dirname "$d"); done; '
            'echo "@ @free $(df --output=avail -B1 "$d" | tail -n1)"; '
            f'echo "@ @staged $({staged})"'
        )

    def process(self, output: list[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in output:
            size, _, name = line.partition(" ")
            if size == "@":
                name, _, size = name.partition(" ")
                size = size.split()[0] if size.split() else ""
            found[name] = size
        return found


@operation()
def placed(
    path: str, manifest: Manifest, source: Path
) -> Generator[StringCommand | FunctionCommand, None, None]:
    """Have the model of `manifest` at `path`, from the directory `source` on this machine."""
    found = host.get_fact(Placed, path=path)
    # What an interrupted run has brought takes no further room.
    free_bytes = int(found.pop("@free", "0")) + int(found.pop("@staged", "") or 0)
    wrong = _difference(found, manifest)
    if not wrong:
        host.noop(f"{path} holds the model whole")
        return
    host.log(f"{path}: {wrong}")
    if not found and free_bytes < manifest.total_bytes + RESERVE_BYTES:
        need, free = manifest.total_bytes / 2**30, free_bytes / 2**30
        yield refuse(
            f"{path}: the model needs {need:.1f} GiB and 1 GiB must stay free, but only "
            f"{free:.1f} GiB are; free some, or set weights.directory to a larger disk"
        )
        return
    staging = _staging(path)
    yield StringCommand(
        f"{owned.first('weights', path, 'absent')} && {{ {_prepare(path, staging)}; }}"
    )
    yield FunctionCommand(copy, (source, staging), {})
    yield StringCommand(_verify(staging), _stdin=_sums(manifest))
    yield StringCommand(_publish(path, staging), _stdin=manifest.encoded.decode() + "\n")


def _staging(path: str) -> str:
    return f"{posixpath.dirname(path)}/.{posixpath.basename(path)}.staging"


def _difference(found: dict[str, str], manifest: Manifest) -> str:
    """What is wrong with the files by name and size; the digest says whose files they are."""
    if not found:
        return "missing"
    found = dict(found)
    if found.pop("@manifest", "") != manifest.identity:
        return "another model, or its manifest is gone"
    expected = {entry.path: f"f{entry.size_bytes}" for entry in manifest.files}
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} does not belong to the model"
        if found[name] != expected[name]:
            return f"{name} has {found[name][1:]} bytes, not {expected[name][1:]}"
    return ""


def _prepare(path: str, staging: str) -> str:
    # What lies there wrong is taken out of sight first, and serves as a basis for the copy.
    path, staging = shlex.quote(path), shlex.quote(staging)
    return (
        f"mkdir -p {staging} && chmod 755 {staging} && if [ -e {path} ]; then "
        f"rm -rf {staging} && mv -T {path} {staging}; fi"
    )


def copy(state: State, host: Host, source: Path, staging: str) -> bool:  # noqa: ARG001
    """rsync `source` to `staging`; what an interrupted run has brought is not sent again."""
    sudo = ["--rsync-path=sudo -n rsync"] if host.data.get("_sudo") else []
    command = [
        "rsync", "--recursive", "--times", "--copy-links", "--checksum", "--delete", "--partial",
        "--inplace", "--chmod=D755,F644", "--exclude=.*", f"--filter=protect {META_DIR}", *sudo,
        f"--rsh={shlex.join(['ssh', *ssh.ssh_options(host)])}",
        f"{source}/", f"{ssh.address(host)}:{staging}/",
    ]  # fmt: skip
    return ssh.run(host, f"copying {source} to {staging}", command, timeout_s=_DAY_S)


def _sums(manifest: Manifest) -> str:
    return "".join(f"{entry.sha256}  {entry.path}\n" for entry in manifest.files)


def _verify(staging: str) -> str:
    words = (
        f"{staging}: these files are not those of the manifest. If the model on the machine that "
        "runs pyinfra changed while it was copied, run again; nothing became visible"
    )
    check = f"cd {shlex.quote(staging)} && sha256sum --check --quiet --strict -"
    return f"({check}) || {{ echo {shlex.quote(words)} >&2; exit 1; }}"


def _publish(path: str, staging: str) -> str:
    # The manifest's newline is pyinfra's; its digest is of the text without.
    path, staging = shlex.quote(path), shlex.quote(staging)
    manifest = f"{staging}/{META_DIR}/manifest.json"
    return (
        f"mkdir -p {staging}/{META_DIR} && chown -R root:root {staging} && head -c -1 > {manifest} "
        f"&& sync -f {staging} && mv -T {staging} {path} && sync -f $(dirname {path})"
    )
