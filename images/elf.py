"""Cut what no program loader reads off ELF files: debug data, symbol tables, section headers.

The loader knows program headers alone. Everything behind the last loaded segment is for
debuggers and linkers; in the wheels of this image that is a third of all bytes. The dynamic
symbol table lies inside a loaded segment and stays, so imports and stack traces keep their names.
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SHARED_OR_EXECUTABLE = (2, 3)  # ET_EXEC, ET_DYN; relocatable objects need their sections


def cut(path: Path) -> int:
    """Cut ``path`` if it is a 64-bit little-endian ELF file and return the bytes saved.

    Returns 0, and leaves the file alone, if it is anything else or already cut.
    """
    size = path.stat().st_size
    with path.open("r+b") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or head[:6] != b"\x7fELF\x02\x01":
            return 0
        fields = list(_HEADER.unpack(head))
        kind, table_at, table_size, count = fields[1], fields[5], fields[9], fields[10]
        if kind not in _SHARED_OR_EXECUTABLE or table_size != _SEGMENT.size or not count:
            return 0
        file.seek(table_at)
        segments = [_SEGMENT.unpack(file.read(_SEGMENT.size)) for _ in range(count)]
        # p_offset is field 2, p_filesz field 5
        end: int = max(
            table_at + count * _SEGMENT.size, *(segment[2] + segment[5] for segment in segments)
        )
        if end >= size:
            return 0
        fields[6] = fields[12] = fields[13] = 0  # e_shoff, e_shnum, e_shstrndx
        file.seek(0)
        file.write(_HEADER.pack(*fields))
        file.truncate(end)
    return size - end
