"""Build the CPU image, layer by layer, each kept until something that it is made of changes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from images import chroot
from images.archive import Layer, image_config, write_image, write_layer
from images.cpu import environment, plugin, recipe, system, wheels
from images.progress import Progress

_VERSIONS = """
import json, platform
from importlib.metadata import version
print(json.dumps({"python": platform.python_version(), "vllm": version("vllm").split("+")[0],
                  "ray": version("ray"), "torch": version("torch")}))
"""


def build(progress: Progress, torch_index_url: str = recipe.TORCH_INDEX_URL) -> dict[str, Any]:
    """Build the image unless it is there, point `current` at it and return its image.json.

    Raises RecipeError if this machine cannot build it, CalledProcessError if a tool fails.
    """
    recipe.check_machine()
    os.umask(0o022)
    folder = recipe.IMAGE_CACHE / recipe.image_key()
    with _one_at_a_time():
        if (folder / "image.json").is_file():
            progress.say(f"the image is there already: {folder}")
        else:
            _build_into(folder, progress, torch_index_url)
        _point_current_at(folder)
    described: dict[str, Any] = json.loads((folder / "image.json").read_text())
    return described


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    recipe.IMAGE_CACHE.mkdir(parents=True, exist_ok=True)
    with (recipe.IMAGE_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_into(folder: Path, progress: Progress, torch_index_url: str) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    root = partial / "rootfs"
    layers = [
        *_system_and_environment(root, progress, torch_index_url),
        _plugin_layer(root, partial),
    ]
    with progress.step("image: write the archive"):
        versions = _versions(root)
        config = image_config(layers, config=recipe.CONFIG, comments=recipe.LAYERS)
        image_id = write_image(partial / "image.tar", layers, config, recipe.REFERENCE)
    described = {
        "id": image_id,
        "reference": recipe.REFERENCE,
        **versions,
        "bytes": (partial / "image.tar").stat().st_size,
    }
    (partial / "image.json").write_text(json.dumps(described, indent=2) + "\n")
    partial.rename(folder)


def _system_and_environment(
    root: Path, progress: Progress, torch_index_url: str
) -> tuple[Layer, Layer]:
    """Fill ``root`` with both big layers; packages are downloaded while Debian is made."""
    system_layer = _Kept("system", recipe.system_key())
    environment_layer = _Kept("environment", recipe.environment_key())
    if not system_layer.exists():
        system.prepare(progress.say)
    with ThreadPoolExecutor() as pool:
        downloads = []
        if not environment_layer.exists():
            fetches: list[Callable[[], None]] = [
                lambda: wheels.fetch_torch(torch_index_url),
                wheels.fetch_others,
            ]
            for name, fetch in zip(("torch", "the other packages"), fetches, strict=True):
                downloads.append(pool.submit(_step, progress, f"download {name}", fetch))
        if system_layer.exists():
            system_layer.unpack(root, progress)
        else:
            with progress.step(f"Debian {recipe.SUITE}: make the root file system"):
                system.make(root)
            system_layer.keep(root, progress)
        for download in downloads:
            download.result()
    if environment_layer.exists():
        environment_layer.unpack(root, progress)
    else:
        environment.make(root, progress)
        environment_layer.keep(root, progress, recipe.ENVIRONMENT.lstrip("/"))
    return system_layer.layer(), environment_layer.layer()


def _step(progress: Progress, text: str, action: Callable[[], None]) -> None:
    with progress.step(text):
        action()


class _Kept:
    """A layer's tar in the cache, below a name that holds the key of what it is made of."""

    def __init__(self, name: str, key: str) -> None:
        self.name = name
        self._tar = recipe.IMAGE_CACHE / "layers" / f"{name}-{key}.tar"
        self._json = self._tar.with_suffix(".json")

    def exists(self) -> bool:
        return self._json.is_file()

    def layer(self) -> Layer:
        kept = json.loads(self._json.read_text())
        return Layer(self._tar, kept["sha256"], kept["size_bytes"])

    def keep(self, root: Path, progress: Progress, path: str = ".") -> None:
        """Write the layer, ``path`` of the tree at ``root``; its description last, as the mark."""
        self._tar.parent.mkdir(exist_ok=True)
        with progress.step(f"{self.name} layer: write"):
            layer = write_layer(root, self._tar, [path])
        progress.say(f"  {layer.size_bytes / 1e6:.0f} MB")
        kept = {"sha256": layer.sha256, "size_bytes": layer.size_bytes}
        self._json.write_text(json.dumps(kept))

    def unpack(self, root: Path, progress: Progress) -> None:
        root.mkdir(exist_ok=True)
        with progress.step(f"{self.name} layer: unpack what is kept"):
            subprocess.run(
                [
                    "tar",
                    "--extract",
                    "--preserve-permissions",
                    "--numeric-owner",
                    f"--directory={root}",
                    f"--file={self._tar}",
                ],
                check=True,
            )


def _plugin_layer(root: Path, partial: Path) -> Layer:
    """Install the plugin into ``root`` and write a layer of what that adds."""
    added = [str(path.relative_to(root)) for path in plugin.make(root)]
    return write_layer(root, partial / "plugin.tar", added)


def _versions(root: Path) -> dict[str, str]:
    """Return what Python, vLLM, Ray and torch inside ``root`` say they are."""
    run = subprocess.run(
        chroot.command(root, ["python", "-c", _VERSIONS], env={"PATH": recipe.PATH}),
        check=True,
        text=True,
        capture_output=True,
    )
    found: dict[str, str] = json.loads(run.stdout)
    wanted = {"vllm": recipe.VLLM, "ray": recipe.RAY, "torch": recipe.TORCH}
    if any(found[name] != version for name, version in wanted.items()):
        raise recipe.RecipeError(f"the image holds {found}, the recipe says {wanted}")
    return found


def _point_current_at(folder: Path) -> None:
    """Make `current` lead to ``folder``, in one step."""
    current = recipe.IMAGE_CACHE / "current"
    fresh = current.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(folder.name)
    fresh.replace(current)


def clean() -> list[Path]:
    """Remove every image and layer that `current` does not need, and return what was removed.

    Not part of a build: a program may still run in an old tree, and on a file system mounted with
    `discard` the removal takes longer than the build.
    """
    with _one_at_a_time():
        layers = recipe.IMAGE_CACHE / "layers"
        needed = {
            f"system-{recipe.system_key()}",
            f"environment-{recipe.environment_key()}",
            (recipe.IMAGE_CACHE / "current").resolve().name,
        }
        old = [
            path
            for path in (*recipe.IMAGE_CACHE.iterdir(), *layers.glob("*"))
            if path.name not in {"current", "layers", "lock"}
            and path.name.removesuffix(".tar").removesuffix(".json") not in needed
        ]
        for path in old:
            if path.is_dir():
                (path / "image.json").unlink(missing_ok=True)  # from here on it is no image
                shutil.rmtree(path)
            else:
                path.unlink()
    return old
