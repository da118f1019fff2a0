#!/usr/bin/env python3
"""Write the table of arguments of a released vLLM or Ray.

    python -m scripts.flags vllm 0.33.0      (or: make flags VLLM=0.33.0)
    python -m scripts.flags ray 2.60.0       (or: make flags RAY=2.60.0)
    python -m scripts.flags --all            write every table again

Takes the wheel from the package index with pip, unpacks its Python files, runs the code in it that
builds the parser (flags_vllm.py, flags_ray.py) and writes
vllm_cluster/plan/flags/data/TOOL-VERSION.json, one argument a line; for vLLM also what it knows of
models, quantisation and attention (flags_limits.py), to vllm_cluster/plan/refuse/data.
docs/flags.md has the rest.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from vllm_cluster.plan.refuse import RULES

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "vllm_cluster/plan/flags/data"
LIMITS = ROOT / "vllm_cluster/plan/refuse/data"
CACHE = ROOT / ".cache/flags"
COMMANDS = {"vllm": "vllm serve", "ray": "ray start"}
# A Linux wheel for the Python of the serving image; the Python files in it are the same for all.
WHEEL = [
    *("--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "abi3"),
    *(f"--platform=manylinux{name}_x86_64" for name in ("_2_35", "_2_31", "_2_28", "2014", "1")),
]


def unpack(tool: str, version: str, folder: Path) -> None:
    """Fetch the wheel of `version` (300 to 400 MB for vLLM) and unpack its Python files."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wanted = [*WHEEL, "--no-deps", "--only-binary=:all:", f"--dest={scratch}"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", *wanted, f"{tool}=={version}"]
        subprocess.run(pip, check=True)
        [wheel] = Path(scratch).glob("*.whl")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith((".py", "METADATA"))]
            archive.extractall(unpacked, names)
        unpacked.rename(folder)


def read(reader: str, folder: Path) -> dict[str, Any]:
    """Run the reader on an unpacked wheel, in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "table.json"
        command = [sys.executable, "-m", f"scripts.flags_{reader}", str(folder), str(out)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            raise SystemExit(
                f"scripts/flags_{reader}.py could not read {folder}:\n{done.stderr[-3000:]}"
            )
        table: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return table


def text_of(tool: str, version: str, table: dict[str, Any]) -> str:
    """The table as a file: a head, then one argument a line."""
    head = {
        "command": COMMANDS[tool],
        "version": version,
        "read_from": f"the wheel {tool}=={version}",
        "parser": table["parser"],
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    rows = ",\n".join("    " + json.dumps(row, sort_keys=True) for row in table["arguments"])
    return "{\n" + "\n".join(lines) + '\n  "arguments": [\n' + rows + "\n  ]\n}\n"


def check_parser(tool: str, version: str, digest: str) -> None:
    """Stop when vLLM's way with arguments is not one that the check was written after."""
    known = json.loads((DATA / "parsers.json").read_text(encoding="utf-8"))
    if digest not in known:
        raise SystemExit(
            f"{tool} {version} treats arguments in a way not seen before (parser {digest}).\n"
            "Compare FlexibleArgumentParser.parse_args in vllm/utils/argparse_utils.py with "
            "vllm_cluster/plan/flags/flexible.py, change that where they differ, and add the "
            f"fingerprint to {DATA / 'parsers.json'}."
        )


def write(tool: str, version: str, *, keep: bool) -> None:
    """Make the table of one version."""
    folder = CACHE / "src" / f"{tool}-{version}"
    if not folder.is_dir():
        unpack(tool, version, folder)
    table = read(tool, folder)
    check_parser(tool, version, table["parser"])
    limits = read("limits", folder) if tool == "vllm" else None
    # Nothing is written before all could be read: half a release would be believed.
    path = DATA / f"{tool}-{version}.json"
    path.write_text(text_of(tool, version, table), encoding="utf-8")
    sys.stdout.write(f"{path.relative_to(ROOT)}: {len(table['arguments'])} arguments\n")
    if limits is not None:
        write_limits(version, limits)
        check_rules(version, folder)
    if not keep:
        shutil.rmtree(folder)


def write_limits(version: str, found: dict[str, Any]) -> None:
    """Make the table of what a vLLM knows of models, quantisation and attention."""
    path = LIMITS / f"vllm-{version}.json"
    lines = [f"  {json.dumps(key)}: {json.dumps(found[key], sort_keys=True)}" for key in found]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    unread = found["models"]["not_read"]
    sys.stdout.write(f"{path.relative_to(ROOT)}: {len(found['models']['known'])} architectures")
    sys.stdout.write(f", not read: {', '.join(unread)}\n" if unread else "\n")


def check_rules(version: str, folder: Path) -> None:
    """Say which rules of vllm_cluster/plan/refuse a release no longer has, or has already."""
    for rule in RULES:
        path = folder / rule.file_in(version)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        there = any(part in text for part in rule.says)
        if there != rule.applies_to(version):
            what = "is not in" if not there else "is in"
            sys.stdout.write(f"rule {rule.id}: what it quotes {what} {rule.file_in(version)}\n")


def main() -> None:
    """Write the tables that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("tool", nargs="?", choices=sorted(COMMANDS))
    parser.add_argument("version", nargs="?", help="a released version, such as 0.33.0")
    parser.add_argument("--all", action="store_true", help="every version that has a table")
    parser.add_argument("--keep", action="store_true", help="keep the sources in .cache/flags/src")
    args = parser.parse_args()
    if args.all:
        wanted = [path.stem.split("-", 1) for path in sorted(DATA.glob("*-*.json"))]
    elif args.tool and args.version:
        wanted = [[args.tool, args.version]]
    else:
        parser.error("name a tool and a version, or --all")
    for tool, version in wanted:
        write(tool, version, keep=args.keep)


if __name__ == "__main__":
    main()
