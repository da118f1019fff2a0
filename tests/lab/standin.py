"""A stand-in for the image: a few megabytes that start in a moment where Ray and vLLM take minutes.

For tests of what is around the containers. `ray` listens like a head or holds on to one like a
worker, `vllm` serves nothing, `python3` answers the probes: what the real ones do is tested with
the real image.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from vllm_cluster.lab import Lab

_LIBRARIES = (
    "lib/x86_64-linux-gnu/libc.so.6", "lib/x86_64-linux-gnu/libm.so.6",
    "lib/x86_64-linux-gnu/libcrypt.so.1", "lib/x86_64-linux-gnu/libtinfo.so.6",
)  # fmt: skip
_PROGRAMS = ("usr/bin/bash", "usr/bin/cat", "usr/bin/sleep", "usr/bin/perl")
_PERL = "usr/lib/x86_64-linux-gnu/perl-base"

_RAY = r"""#!/usr/bin/perl
use strict; use IO::Socket::INET;
$SIG{TERM} = sub { exit 0 };
my ($port) = map { /^--port=(\d+)$/ ? $1 : () } @ARGV;
my ($head) = map { /^--address=(\S+)$/ ? $1 : () } @ARGV;
if (defined $head) {
  my $line = IO::Socket::INET->new(PeerAddr => $head) or die "no head at $head\n";
  print "worker of $head\n"; <$line>; exit 1;
}
my $listen = IO::Socket::INET->new(LocalPort => $port, Listen => 99, ReuseAddr => 1)
  or die "port $port: $!\n";
my @kept; print "head on $port\n";
while (my $worker = $listen->accept) { push @kept, $worker }
"""
_VLLM = """#!/bin/bash
trap 'exit 0' TERM
if [ -e /broken ]; then cat /broken >&2; exit 1; fi
echo "serving nothing"
while :; do sleep 1 & wait $!; done
"""
_PYTHON = """#!/bin/bash
case "$*" in
  *" gpus"*) echo 99 ;;
  *completion*) while [ -e /mute ]; do sleep 1; done; echo "one token" ;;
  *watch.py*) while :; do echo "well as a stand-in"; sleep 2 & wait $!; done ;;
  *" load "*) cat /load ;;
  # `python3 -`: vLLM judges its arguments, and dislikes one.
  "- "*--max-num-seqs=13*) echo "refused: vLLM refuses: ValueError: 13 is too few" >&2; exit 1 ;;
  "- "*) ;;
  *) cat /versions ;;
esac
"""
# What NVIDIA's toolkit puts into a container. A test writes /lost to take the GPUs away.
_SMI = """#!/bin/bash
[ ! -e /lost ] || { echo 'Failed to initialize NVML: Unknown Error'; exit 255; }
echo "GPU 0: a stand-in"
"""
# What an interpreter and its packages leave behind, and nothing else of them.
PACKAGES = "usr/lib/python3.11/site-packages"
HEADER = "usr/include/python3.11/patchlevel.h"
VERSIONS = {
    "python": "3.11.2", "ray": "2.60.0", "vllm": "0.32.0", "torch": "2.13.0", "cuda": "12.9",
}  # fmt: skip


TAG = "vllm-cluster/standin:1"


def write(
    lab: Lab,
    archive: Path,
    versions: dict[str, str] | None = None,
    tag: str = TAG,
    *,
    lacks: tuple[str, ...] = (),
    broken: str = "",
    mute: bool = False,
    tokens_per_s: float = 100.0,
) -> Path:
    """Write a `docker save` archive whose image claims `versions`; returns its path.

    `lacks`: packages that are not in it. `broken`: what its server says before it ends.
    `mute`: no completion ever comes.
    """
    claimed = {k: v for k, v in {**VERSIONS, **(versions or {})}.items() if k not in lacks}
    load = {"tokens_per_s": tokens_per_s, "failed": []}
    extra = {"load": json.dumps(load), **({"broken": broken + "\n"} if broken else {})}
    if mute:
        extra["mute"] = ""
    layer = _layer(lab.lower, claimed, extra)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }).encode()  # fmt: skip
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, f"{digest}/layer.tar", layer)
        _add(tar, name, config)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return archive


def _layer(lower: Path, versions: dict[str, str], extra: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in (*_PROGRAMS, *_LIBRARIES):
            _add(tar, name, (lower / name).read_bytes(), mode=0o755)
        loader = (lower / "lib64/ld-linux-x86-64.so.2").read_bytes()
        _add(tar, "lib64/ld-linux-x86-64.so.2", loader, mode=0o755)
        for file in sorted((lower / _PERL).rglob("*")):
            if file.is_file():
                _add(tar, str(file.relative_to(lower)), file.read_bytes())
        for name in ("bin/bash", "bin/sh"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/bash"
            tar.addfile(link)
        for name, text in (("ray", _RAY), ("vllm", _VLLM), ("python3", _PYTHON),
                           ("nvidia-smi", _SMI)):  # fmt: skip
            _add(tar, f"usr/bin/{name}", text.encode(), mode=0o755)
        _add(tar, "usr/bin/mkdir", b"#!/bin/bash\n", mode=0o755)
        for name in [name for name in ("ray", "vllm", "torch") if name in versions]:
            _add(tar, f"{PACKAGES}/{name}-{versions[name]}.dist-info/METADATA", b"")
        _add(tar, HEADER, f'#define PY_VERSION "{versions["python"]}"\n'.encode())
        for name, text in extra.items():
            _add(tar, name, text.encode())
        _add(tar, "versions", "".join(f"{k} {v}\n" for k, v in versions.items()).encode())
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))


def model(folder: Path) -> Path:
    """A directory that passes for a model where nothing loads it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"architectures": ["StandIn"]}\n')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    return folder
