"""A description with all that it names on this machine, and a stand-in for `ssh`."""

from __future__ import annotations

from pathlib import Path

LAB = Path(__file__).parents[3] / "inventories" / "lab.yaml"


def description(folder: Path) -> Path:
    """The lab's, with keys and a model beside it, and no secrets yet."""
    text = LAB.read_text()
    for name in ("id_ed25519", "ssh_config", "known_hosts"):
        text = text.replace(f"../.lab/lab/{name}", name)
        (folder / name).touch()
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    text = text.replace("  archive: ../.cache/image/current/image.tar\n", "")
    text = text.replace("cpu:0.32.0-ray2.60.0", f"cpu@sha256:{'0' * 64}")
    file = folder / "lab.yaml"
    file.write_text(text.replace("../.cache/model/tiny", "model"))
    return file


def ssh(folder: Path, script: str) -> Path:
    """A directory for PATH whose `ssh` runs `script`; asked for its settings it fails."""
    path = folder / "bin"
    path.mkdir()
    (path / "ssh").write_text(f'#!/bin/bash\n[ "$1" != -G ] || exit 1\n{script}\n')
    (path / "ssh").chmod(0o755)
    return path
