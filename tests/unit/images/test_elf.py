"""Cutting ELF files: smaller, and still loaded and run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from images import elf

TAIL_BYTES = 100_000


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """`true`, with a tail that no segment holds, where debug data lies."""
    copy = tmp_path / "true"
    shutil.copy(shutil.which("true") or "/bin/true", copy)
    with copy.open("ab") as file:
        file.write(b"d" * TAIL_BYTES)
    return copy


def test_what_no_segment_holds_is_cut_and_the_program_still_runs(program: Path) -> None:
    before = program.stat().st_size
    saved = elf.cut(program)
    assert saved >= TAIL_BYTES
    assert program.stat().st_size == before - saved
    assert b"d" * 100 not in program.read_bytes()
    assert subprocess.run([program], check=False).returncode == 0


def test_a_second_cut_finds_nothing(program: Path) -> None:
    elf.cut(program)
    content = program.read_bytes()
    assert elf.cut(program) == 0
    assert program.read_bytes() == content


def test_a_shared_library_still_loads(tmp_path: Path) -> None:
    module = next(Path(p) for p in sys.path if p.endswith("lib-dynload")) / ""
    source = next(module.glob("_struct.*.so"))
    copy = tmp_path / source.name
    shutil.copy(source, copy)
    with copy.open("ab") as file:
        file.write(b"d" * TAIL_BYTES)
    assert elf.cut(copy) >= TAIL_BYTES
    code = "import _struct; print(_struct.__file__, _struct.calcsize('<I'))"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout.split() == [str(copy), "4"]


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"#!/bin/sh\nexit 0\n" * 9, b"\x7fELF\x01\x01" + bytes(94)]
)
def test_other_files_are_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert elf.cut(file) == 0
    assert file.read_bytes() == content


def test_a_relocatable_object_keeps_its_sections(tmp_path: Path, program: Path) -> None:
    content = bytearray(program.read_bytes())
    content[16:18] = b"\x01\x00"  # e_type ET_REL
    file = tmp_path / "object.o"
    file.write_bytes(content)
    assert elf.cut(file) == 0
