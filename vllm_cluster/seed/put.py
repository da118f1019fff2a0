"""A seed into a directory, or onto an ISO image whose label makes cloud-init look into it."""

from __future__ import annotations

import io
import os
from pathlib import Path

from vllm_cluster.seed.make import VOLUME, Seed


def directory(seed: Seed, folder: Path) -> list[Path]:
    """Write the files; readable by their owner alone where they hold a key.

    Raises FileExistsError, before anything is written, where a file of another content is there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / name: text for name, text in seed.files.items()}
    for path, text in texts.items():
        if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
            raise FileExistsError(path)
    for path, text in texts.items():
        _write(path, text.encode(), secret=seed.secret)
    return list(texts)


def iso(seed: Seed, path: Path) -> None:
    """Write an ISO 9660 image with the label CIDATA. Raises FileExistsError."""
    import pycdlib  # noqa: PLC0415  only who makes an image waits for it

    if path.exists():
        raise FileExistsError(path)
    image = pycdlib.PyCdlib()
    # Rock Ridge and Joliet both: Linux reads the names as they are, other systems too.
    image.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=VOLUME)
    try:
        for number, (name, text) in enumerate(seed.files.items()):
            data = text.encode()
            image.add_fp(
                io.BytesIO(data), len(data), f"/SEED{number}.;1", rr_name=name,
                joliet_path=f"/{name}",
            )  # fmt: skip
        buffer = io.BytesIO()
        image.write_fp(buffer)
    finally:
        image.close()
    _write(path, buffer.getvalue(), secret=seed.secret)


def _write(path: Path, data: bytes, *, secret: bool) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
