"""Build the CPU image: ``python -m images.cpu build``, or choose its versions afresh: ``lock``."""

from __future__ import annotations

import json
import subprocess
import sys

import click

from images.cpu import lock
from images.cpu.build import build, clean
from images.cpu.recipe import IMAGE_CACHE, TORCH_INDEX_URL, RecipeError
from images.progress import Progress


@click.group()
def main() -> None:
    """Build the image of vLLM and Ray for CPUs."""


@main.command("build")
@click.option("--torch-index-url", default=TORCH_INDEX_URL, show_default=True)
def build_command(torch_index_url: str) -> None:
    """Build the image below .cache/image/current, unless it is there; needs root."""
    try:
        described = build(Progress(), torch_index_url)
    except RecipeError as error:
        sys.exit(f"The image cannot be built here: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"The image was not built, its tool's words are above: {error}")
    print(json.dumps(described, indent=2))
    print(f"docker load --input {IMAGE_CACHE / 'current/image.tar'}")


@main.command("clean")
def clean_command() -> None:
    """Remove the images and layers that were replaced."""
    for path in clean():
        print(f"removed {path}")


@main.command("lock")
@click.option("--torch-index-url", default=None, help="where torch's CPU build is, if not in pip's")
def lock_command(torch_index_url: str | None) -> None:
    """Resolve the packages afresh and write requirements.lock."""
    print(f"{lock.write(torch_index_url)} packages pinned")


if __name__ == "__main__":
    main()
