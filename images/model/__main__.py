"""Make the tiny model: ``python -m images.model``."""

from __future__ import annotations

import json

from images.model.make import MODEL, make
from images.progress import Progress


def main() -> None:
    """Make the model below .cache/model/tiny unless it is there, and print its files' hashes."""
    print(json.dumps(make(Progress()), indent=2))
    print(MODEL)


if __name__ == "__main__":
    main()
