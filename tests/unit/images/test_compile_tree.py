"""Bytecode that does not depend on time, on order or on which process wrote it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from images.cpu import compile_tree

SOURCE = "ANSWER = 'one'\nNAMES = {'a', 'b', 'c'}\n\ndef f(one, a):\n    return one in {'x', 'y'}\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.py", "b/__init__.py", "b/c.py"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(SOURCE + f"HERE = {name!r}\n")
    return tmp_path / "tree"


def run(tree: Path) -> str:
    return subprocess.run(
        [sys.executable, compile_tree.__file__, str(tree)],
        check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"},
    ).stdout  # fmt: skip


def bytecode(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*.pyc")}


def test_every_file_gets_bytecode_that_never_asks_for_the_sources_time(tree: Path) -> None:
    run(tree)
    written = bytecode(tree)
    assert len(written) == 3
    for content in written.values():
        assert content[:4] == importlib.util.MAGIC_NUMBER
        assert content[4:8] == b"\x01\0\0\0"  # PEP 552: hash-based, not checked
    code = tree / "a.py"
    code.write_text("ANSWER = 'two'\n")
    os.utime(code, (2**31, 2**31))
    read = [sys.executable, "-c", "import a; print(a.ANSWER)"]
    found = subprocess.run(read, cwd=tree, check=True, capture_output=True, text=True).stdout
    assert found == "one\n"


def test_two_runs_write_the_same_bytes(tree: Path) -> None:
    run(tree)
    first = bytecode(tree)
    for path in tree.rglob("*.py"):
        os.utime(path, (1, 1))
    run(tree)
    assert bytecode(tree) == first


def test_a_file_that_is_no_python_is_counted_and_hides_no_other(tree: Path) -> None:
    (tree / "a_template.py").write_text("{{ cookiecutter }} = (\n")
    said = run(tree)
    assert said.startswith("3 files compiled, 1 are not Python")
    assert not list(tree.rglob("a_template*.pyc"))
