"""Compile a tree of Python files to bytecode that never looks at the source's time.

Runs under the image's own Python: ``python compile_tree.py FOLDER``. Importing vLLM from source
takes twice as long as from bytecode, and a container that is thrown away would pay at each start.

The bytecode must be the same on each build. What `marshal` writes depends on which strings the
process has seen before, so the files go in fixed groups, each compiled by a process of its own.
"""

from __future__ import annotations

import multiprocessing
import py_compile
import re
import sys
import warnings
from pathlib import Path

_GROUP = 400  # files a process
# A third of all files, and none that starting or serving imports: a missing .pyc costs time only.
_NOT_WORTH_IT = (
    re.compile(r"/transformers/models/(?!auto/)[^/]+/(?!__init__|configuration|tokenization)"),
    re.compile(r"/anthropic/(resources|types|lib)/"),
    re.compile(r"/openai/resources/"),
    re.compile(r"/ray/(data|llm|serve|train|tune)/"),
    re.compile(r"/sentry_sdk/|/supervisor/|/sympy/physics/|/torch/testing/_internal/"),
)


def compile_group(files: list[str]) -> int:
    """Compile ``files`` and return how many are no valid Python (templates, Python 2 tests)."""
    warnings.simplefilter("ignore")
    invalid = 0
    for file in files:
        try:
            py_compile.compile(
                file,
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        except (py_compile.PyCompileError, UnicodeDecodeError):
            invalid += 1
    return invalid


def main(folder: str) -> None:
    """Compile every Python file below ``folder``."""
    files = sorted(
        str(file)
        for file in Path(folder).rglob("*.py")
        if not any(pattern.search(str(file)) for pattern in _NOT_WORTH_IT)
    )
    groups = [files[start : start + _GROUP] for start in range(0, len(files), _GROUP)]
    with multiprocessing.Pool(maxtasksperchild=1) as pool:
        invalid = sum(pool.imap_unordered(compile_group, groups, chunksize=1))
    print(f"{len(files) - invalid} files compiled, {invalid} are not Python {sys.version[:4]}")


if __name__ == "__main__":
    main(sys.argv[1])
