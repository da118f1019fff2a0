"""Files of this machine that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def replace(file: Path, content: bytes) -> None:
    """Put `content` in place of what `file` holds, in one rename. Raises OSError."""
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        new.write_bytes(content)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def replace_text(file: Path, text: str) -> None:
    """The same for text, in UTF-8."""
    replace(file, text.encode())
