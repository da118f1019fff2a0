"""Start every case of the memory matrix on real vLLM and write docs/memory-proof.md.

Run as `make test-memory` (root, minutes; needs the CPU image). Cases that have
been measured with the same image, model and probe are not measured again unless
--fresh is given. Exit 1 when a number does not agree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab.memory_proof.cases import MATRIX, Compared, compare, predict
from tests.lab.memory_proof.run import ROOTFS, Case, VllmFailedError, try_vllm
from tests.lab.memory_proof.tiny import CONFIGS, write_model

REPOSITORY = Path(__file__).resolve().parents[1]
CACHE = REPOSITORY / ".cache" / "memory-proof"
PAGE = REPOSITORY / "docs" / "memory-proof.md"
PROBE = REPOSITORY / "tests" / "lab" / "memory_proof"
#: Cases that share one start of Python, so that an error costs little.
AT_ONCE = 4


def key(case: Case) -> str:
    """What a measurement depends on: releases in the image, probe, model, question."""
    image = described_image()
    releases = [image[name] for name in ("vllm", "torch", "python")]
    parts = [
        json.dumps(releases).encode(),
        json.dumps(case.as_json()).encode(),
        json.dumps(CONFIGS[case.kind]).encode(),
    ]
    parts += [(PROBE / name).read_bytes() for name in ("inside.py", "worker.py", "tiny.py")]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def described_image() -> dict[str, str]:
    """The image's own description."""
    found: dict[str, str] = json.loads((ROOTFS.resolve().parent / "image.json").read_text())
    return found


def measured(case: Case) -> dict[str, Any] | None:
    """An earlier measurement, or None."""
    file = CACHE / "results" / f"{key(case)}.json"
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def measure(cases: Sequence[Case]) -> None:
    """Start the cases, keep what they said, print why others did not come up."""
    models = CACHE / "models"
    (CACHE / "results").mkdir(parents=True, exist_ok=True)
    for case in cases:
        write_model(models / case.kind, case.kind)
    found, failed = try_vllm(cases, models)
    for case in cases:
        if str(case) in found:
            file = CACHE / "results" / f"{key(case)}.json"
            file.write_text(json.dumps(found[str(case)]))
    for name, why in failed.items():
        print(f"{name} did not come up: {why}\n", flush=True)


def rows(case: Case) -> list[Compared]:
    """All numbers of a measured case."""
    found = measured(case)
    if found is None:
        raise VllmFailedError(f"{case} was not measured")
    return list(compare(predict(case, CACHE / "models"), found))


def page() -> str:
    """docs/memory-proof.md."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    image = described_image()
    lines = [
        "# The memory plan against real vLLM",
        "",
        f"Written by `make test-memory` at commit {commit}, with vLLM {image['vllm']} on CPUs "
        f"(torch {image['torch']}, Python {image['python']}), one process a rank (mp). The models "
        "are made from a seed (`tests/lab/memory_proof/tiny.py`), their weights are really "
        "loaded. Blocks and tokens are those of vLLM's log; weights are the bytes of the "
        "parameters in each worker after loading; KV bytes are the storage that each worker "
        "allocated. Predicted and measured are equal where only one number stands.",
        "",
        "| case | block, tokens | blocks | KV cache size, tokens | concurrency "
        "| weights of each rank, bytes | KV cache of each rank, bytes |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    lines += [_line(case, rows(case)) for case in MATRIX]
    agreed = sum(number.agrees for case in MATRIX for number in rows(case))
    total = sum(len(rows(case)) for case in MATRIX)
    lines += ["", f"{agreed} of {total} numbers agree, {len(MATRIX)} cases.", ""]
    return "\n".join(lines)


def _line(case: Case, numbers: Sequence[Compared]) -> str:
    def cell(number: Compared) -> str:
        if number.predicted == number.measured:
            return f"{number.measured:,}"
        share = number.predicted / number.measured - 1
        return f"{number.predicted:,} / {number.measured:,} ({share:+.2%})"

    cells = [str(case), *(cell(number) for number in numbers[:4])]
    for what in ("weights", "KV cache"):
        cells.append(", ".join(cell(n) for n in numbers if f": {what}, bytes" in n.what))
    return "| " + " | ".join(cells) + " |"


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(REPOSITORY), *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def main() -> int:
    """Measure what is missing, compare everything, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="measure every case again")
    parser.add_argument("--only", default="", help="measure cases whose name contains this")
    parser.add_argument("--most", type=int, default=len(MATRIX), help="measure at most so many")
    arguments = parser.parse_args()
    wanted = [case for case in MATRIX if arguments.only in str(case)]
    missing = [case for case in wanted if arguments.fresh or measured(case) is None]
    missing = missing[: arguments.most]
    for start in range(0, len(missing), AT_ONCE):
        measure(missing[start : start + AT_ONCE])
    wrong = 0
    for case in wanted:
        if measured(case) is None:
            wrong += arguments.most >= len(MATRIX)
            print(f"{case}: not measured")
            continue
        for number in rows(case):
            if not number.agrees:
                wrong += 1
                print(f"{case}: {number.what}: {number.predicted} planned, {number.measured} found")
    if all(measured(case) is not None for case in MATRIX):
        PAGE.write_text(page(), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
