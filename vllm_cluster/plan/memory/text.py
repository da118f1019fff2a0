"""Numbers as people read them."""

from __future__ import annotations


def gib(size_bytes: float) -> str:
    """1.5 GiB; MiB below a tenth of a GiB."""
    if abs(size_bytes) < 0.1 * 1024**3:
        return f"{size_bytes / 1024**2:.1f} MiB"
    return f"{size_bytes / 1024**3:.1f} GiB"


def kib(size_bytes: float) -> str:
    """160.0 KiB; MiB from one up."""
    if size_bytes >= 1024**2:
        return f"{size_bytes / 1024**2:.2f} MiB"
    return f"{size_bytes / 1024:.1f} KiB"


def count(number: float) -> str:
    """1 234 567 with commas, the way vLLM logs it."""
    return f"{number:,.0f}"
