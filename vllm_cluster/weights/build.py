"""Pack the agent into one file that any host's python3 runs: the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import shlex
import sys
import zipfile
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent
_MAIN = b"""import sys
from vllm_cluster.weights.agent.cli import main
sys.exit(main())
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def agent_bytes() -> bytes:
    """The zipapp: `python3 weights-agent.pyz --root DIR COMMAND`. Stored, not deflated, because
    two zlibs do not give the same bytes."""
    sources = {
        "__main__.py": _MAIN,
        "vllm_cluster/__init__.py": b"",
        "vllm_cluster/weights/__init__.py": b"",
        "vllm_cluster/weights/manifest.py": (_PACKAGE / "manifest.py").read_bytes(),
    }
    for path in (_PACKAGE / "agent").glob("*.py"):
        sources[f"vllm_cluster/weights/agent/{path.name}"] = path.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(sources):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.create_system = 3
            archive.writestr(info, sources[name])
    return b"#!/usr/bin/env python3\n" + packed.getvalue()


@cache
def agent_version() -> str:
    """What a host's copy is compared by; asked of every host, worked out once."""
    return hashlib.sha256(agent_bytes()).hexdigest()


def put_script(path: str) -> str:
    """The shell line that makes its standard input the agent at `path`, whole or not at all."""
    # Two that bring it at once must not write into one file: $$ is the shell's own number.
    at, new = shlex.quote(path), f"{shlex.quote(path)}.$$.new"
    put = f"mkdir -p $(dirname {at}) && cat > {new} && chmod 755 {new} && sync {new}"
    return f"{put} && mv -f {new} {at} || {{ rm -f {new}; exit 1; }}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_bytes(agent_bytes())
    target.chmod(0o755)
