"""Reading a package that cannot run here: what the script is for, on packages made for the test."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import flags as script

ROOT = Path(__file__).parents[3]
PARSER = '''
"""Parser."""
import argparse
def human_readable_int(value): return int(value)
def human_readable_int_or_auto(value): return int(value)
class FlexibleArgumentParser(argparse.ArgumentParser):
    def parse_args(self, args=None, namespace=None):
        """%s"""
        return super().parse_args(args, namespace)
'''
PLATFORM = """
import enum
class PlatformEnum(enum.Enum):
    CUDA = 1
class UnspecifiedPlatform:
    device_type = ""
"""
SERVE = """
import argparse, json
import torch
import not_installed_anywhere as missing
from missing_too.kernels import fast
from vllm import _C
from vllm.platforms import current_platform

@torch.compile
def kept(value):
    return int(value)

@fast(level=3)
class Model(torch.nn.Module, missing.Mixin):
    def forward(self, x: torch.Tensor | None) -> fast.Result: ...

def optional_type(return_type):
    def _optional_type(text):
        return None if text in ("", "None") else return_type(text)
    return _optional_type

def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    for name in ("--tensor-size", "--stage-size"):
        parser.add_argument(name, "-" + name[2], type=int, default=1)
    parser.add_argument("--prefix", action=argparse.BooleanOptionalAction, default=None,
                        help="Fine. --prefix is deprecated and gone in v2. More.")
    parser.add_argument("--device", choices=["cpu", current_platform.device_type])
    parser.add_argument("--extra", type=json.loads, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=optional_type(float))
    return parser
"""


def package(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(root).parents:
            if folder != Path():
                (root / folder / "__init__.py").touch()


def vllm_in(folder: Path, note: str = "a note") -> Path:
    package(
        folder,
        {
            "vllm/utils/argparse_utils.py": PARSER % note,
            "vllm/platforms/interface.py": PLATFORM,
            "vllm/entrypoints/common/cli_args.py": SERVE,
        },
    )
    return folder


def read(folder: Path) -> dict[str, Any]:
    out = folder / "out.json"
    command = [sys.executable, "-m", "scripts.flags_vllm", str(folder), str(out)]
    subprocess.run(command, check=True, cwd=ROOT)
    table: dict[str, Any] = json.loads(out.read_text())
    return table


def test_a_parser_among_missing_modules_is_read(tmp_path: Path) -> None:
    rows = {row["dest"]: row for row in read(vllm_in(tmp_path))["arguments"]}
    assert rows["tensor_size"] == {
        "names": ["--tensor-size", "-t"],
        "dest": "tensor_size",
        "takes": "value",
        "type": "int",
        "default": 1,
    }
    assert rows["stage_size"]["names"] == ["--stage-size", "-s"]
    assert rows["prefix"]["off"] == ["--no-prefix"]
    assert rows["prefix"]["deprecated"] == "--prefix is deprecated and gone in v2."
    assert rows["device"]["choices"] == ["cpu", "cuda"]
    assert rows["extra"] == {
        "names": ["--extra"],
        "dest": "extra",
        "hidden": True,
        "takes": "list",
        "type": "json",
    }
    assert rows["limit"]["type"] == "float?"
    assert rows["help"]["exits"] is True
    assert "model_tag" not in rows


def test_the_fingerprint_of_the_parser_is_of_its_code_not_of_its_texts(tmp_path: Path) -> None:
    first = read(vllm_in(tmp_path / "a"))["parser"]
    assert read(vllm_in(tmp_path / "b", note="another note"))["parser"] == first
    changed = vllm_in(tmp_path / "c")
    path = changed / "vllm/utils/argparse_utils.py"
    path.write_text(path.read_text().replace("super().parse_args", "super().parse_known_args"))
    assert read(changed)["parser"] != first


def test_a_parser_not_seen_before_stops_the_script() -> None:
    with pytest.raises(SystemExit, match=r"flexible\.py"):
        script.check_parser("vllm", "9.9.9", "0123456789abcdef")


def test_what_is_written_is_what_is_read_one_argument_a_line() -> None:
    table = {"parser": "click", "arguments": [{"names": ["--a"]}, {"names": ["--b"]}]}
    text = script.text_of("ray", "9.9.9", table)
    assert json.loads(text)["arguments"] == table["arguments"]
    assert json.loads(text)["command"] == "ray start"
    assert sum(line.startswith('    {"names"') for line in text.splitlines()) == 2
