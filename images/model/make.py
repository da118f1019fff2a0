"""Make the tiny model inside the image's tree and keep it below .cache/model/tiny."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from images import chroot
from images.cpu import recipe
from images.progress import Progress

HERE = Path(__file__).resolve().parent
MODEL = recipe.CACHE / "model" / "tiny"
DESCRIPTION = MODEL.with_suffix(".json")
_SOURCES = ("generate.py", "text.txt")
_ENV = {"PATH": recipe.PATH, "LANG": "C.UTF-8", "TOKENIZERS_PARALLELISM": "false"}


def source_key() -> str:
    """Return a hash over what the model is made of."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file in ``folder`` by its name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def make(progress: Progress) -> dict[str, Any]:
    """Make the model unless the one there was made of the same source, and return tiny.json.

    That is {"source": hash of its source, "files": {name: sha256}}. Needs root and the built
    image; raises CalledProcessError if the generator fails in there.
    """
    if DESCRIPTION.is_file():
        kept: dict[str, Any] = json.loads(DESCRIPTION.read_text())
        if (
            kept["source"] == source_key()
            and MODEL.is_dir()
            and kept["files"] == file_hashes(MODEL)
        ):
            progress.say(f"the model is there already: {MODEL}")
            return kept
    DESCRIPTION.unlink(missing_ok=True)
    with progress.step("model: make the tokenizer and the weights"):
        generate(MODEL)
    described = {"source": source_key(), "files": file_hashes(MODEL)}
    DESCRIPTION.write_text(json.dumps(described, indent=2) + "\n")
    return described


def generate(folder: Path) -> None:
    """Write the model's files into ``folder``, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    root = (recipe.IMAGE_CACHE / "current" / "rootfs").resolve()
    subprocess.run(
        chroot.command(
            root,
            ["python", "/mnt/generate.py", "/srv"],
            env=_ENV,
            binds={HERE: "/mnt", folder: "/srv"},
        ),
        check=True,
        stdout=subprocess.DEVNULL,
    )
