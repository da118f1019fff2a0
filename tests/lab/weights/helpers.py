"""Hosts for the tests of a fan-out, and how they are looked at without the agent's own word."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.weights.fleet import Fleet, wait_until

SHARDS, SHARD_BYTES = 16, 2 << 20
CHUNK_BYTES = 256 * 1024
HOSTS = 4
RATE_MBIT = 100  # 32 MiB: 2.7 s from end to end, time enough to be hurt in
SHARD = "model-00009-of-00016.safetensors"
QUICK_LIMITS = {"connections": 1, "give_up_s": 60.0, "rescue_s": 2.0}
QUICK = {
    "silence_s": 2.0,
    "linger_s": 8.0,
    "tuning": {
        "patience_s": 1.0, "absent_s": 4.0, "slow_s": 3.0, "trial_s": 6.0, "return_s": 1.0,
        "hold_s": 30.0,
    },
    "limits": QUICK_LIMITS,
}  # fmt: skip


def same(source: Path, placed: Path) -> bool:
    done = subprocess.run(
        ["diff", "-r", "-x", ".vllm-cluster", source, placed], capture_output=True, check=False
    )
    return done.returncode == 0


def reach(fleet: Fleet, number: int, share: float) -> None:
    """Wait until the host has that share; its staging directory is looked at, not its word."""
    total = SHARDS * SHARD_BYTES

    def there() -> bool:
        staging = fleet.root(number) / ".staging" / fleet.key()
        return written_bytes(staging) >= share * total

    wait_until(there, 60, f"{share:.0%} on host {number}")


def written_bytes(staging: Path) -> int:
    """Bytes that were really written: preallocated space reads as a hole (SEEK_DATA)."""
    count = 0
    for path in staging.glob("*.safetensors"):
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            position = 0
            while True:
                start = os.lseek(handle, position, os.SEEK_DATA)
                position = os.lseek(handle, start, os.SEEK_HOLE)
                count += position - start
        except OSError:
            pass
        finally:
            os.close(handle)
    return count


def listening(fleet: Fleet, number: int) -> str:
    done = subprocess.run(
        [*fleet.net.enter(number), "ss", "-Htln"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def everybody_has_it(fleet: Fleet, source: Path, numbers: list[int]) -> None:
    for number in numbers:
        assert same(source, fleet.placed(number)), fleet.log(number)
        done = fleet.call(number, "verify")
        assert done.returncode == 0, done.stdout


def nothing_visible(fleet: Fleet, number: int) -> None:
    assert not os.path.lexists(fleet.placed(number))
    store = fleet.root(number) / ".store"
    assert list(store.iterdir()) == []


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 0x10]))


def set_back(path: Path, change: object) -> None:
    """Change bytes as a disk does, that is without a trace in size and mtime."""
    info = path.stat()
    assert callable(change)
    change(path)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
