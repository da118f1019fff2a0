"""What of the installed packages the image leaves out, and why that is safe.

Half of the bytes of the wheels serve compilers, debuggers, other processors and other uses than
`ray start` and `vllm serve`. A smaller image is unpacked, sent and started sooner.
"""

from __future__ import annotations

import shutil
from pathlib import Path

# Folders and files, relative to site-packages.
LEFT_OUT = (
    "torch/include",  # C++ headers: nothing compiles in the image
    "torch/share/cmake",
    "torch/test",
    "torch/bin/protoc",
    "torch/bin/protoc-3.13.0.0",
    "torch/bin/test_*",
    "torch/lib/*.a",
    "ray/jars",  # Java workers
    "ray/cpp",  # C++ workers
    "ray/rllib",  # nothing else in Ray imports it
    "ray/dashboard/client/build/static/js/*.map",
    "mistral_common/data/*.json",  # tokenizers of other models
    "mistral_common/data/*.model*",
    "numpy/**/tests",
    "sympy/**/tests",
    "networkx/**/tests",
    "pycountry/locales",
    "transformers/models/**/modular_*.py",  # what transformers writes its modelling files from
    "transformers/models/**/convert_*.py",
    "torch/lib/libjitbackend_test.so",
    "torch/lib/libtorchbind_test.so",
    "torch/lib/libbackend_with_compiler.so",
    "**/*.pyi",
    "**/*.pxd",
    "**/*.pyx",
    "**/*.h",
    "**/*.hpp",
    "**/*.cuh",
)


def prune(site_packages: Path) -> int:
    """Remove what LEFT_OUT names below ``site_packages`` and return the bytes removed."""
    saved = 0
    for pattern in LEFT_OUT:
        for path in list(site_packages.glob(pattern)):
            saved += _remove(path)
    return saved


def _remove(path: Path) -> int:
    if path.is_symlink() or path.is_file():
        size = path.lstat().st_size
        path.unlink()
        return size
    size = sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
    shutil.rmtree(path)
    return size
