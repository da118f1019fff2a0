"""Garbage is collected seldom: each look would visit the code of every test again."""

from __future__ import annotations

import gc

# Imports make some million objects that stay.
gc.set_threshold(100_000, 20, 50)


def pytest_collection_finish() -> None:
    """What is there by now stays to the end."""
    gc.collect()
    gc.freeze()
