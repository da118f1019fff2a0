"""The last layer: the platform plugin, as an installed package."""

from __future__ import annotations

import shutil
from pathlib import Path

from images.cpu import environment
from images.cpu.recipe import PLUGIN, SITE_PACKAGES, VLLM

NAME = "ray_cpu_platform"


def make(root: Path) -> list[Path]:
    """Install the plugin into the tree at ``root`` and return the folders that are new there."""
    site_packages = root / SITE_PACKAGES.lstrip("/")
    package = site_packages / NAME
    shutil.copytree(
        PLUGIN,
        package,
        ignore=shutil.ignore_patterns("__pycache__"),
        copy_function=shutil.copyfile,
    )
    metadata = site_packages / f"{NAME}-{VLLM}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {VLLM}\n"
        "Summary: vLLM platform plugin for CPU workers placed by Ray\n"
    )
    (metadata / "entry_points.txt").write_text(
        f"[vllm.platform_plugins]\nray_cpu = {NAME}:register\n"
    )
    environment.compile_tree(root, f"{SITE_PACKAGES}/{NAME}")
    return [package, metadata]
