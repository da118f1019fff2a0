"""Read the arguments of `vllm serve` from an unpacked vLLM wheel.

Run as `python -m scripts.flags_vllm FOLDER OUT` in a process of its own; writes JSON to OUT.
The released `make_arg_parser` itself runs here (see flags_stubs), so conditions, loops and shared
definitions in it are followed exactly; only the platform is unknown, as on a machine without a GPU.
"""

import argparse
import ast
import dataclasses
import hashlib
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from scripts import flags_stubs

PARSER_MODULES = (  # newest first
    "vllm.entrypoints.common.cli_args",  # 0.33
    "vllm.entrypoints.launchers.cli_args",  # 0.32
    "vllm.entrypoints.openai.cli_args",  # to 0.27
)
PLAIN_TYPES = {int: "int", float: "float", str: "str", None: "str", json.loads: "json"}
NAMED_TYPES = {
    "human_readable_int": "human_int",
    "human_readable_int_or_auto": "human_int_or_auto",
    "union_dict_and_str": "json_or_str",
    "parse_reasoning_parser": "str",
}


def prepare(root: Path) -> None:
    """Make the package importable."""
    sys.modules["regex"] = re
    hollow = {"vllm._C", "vllm._moe_C", "vllm.vllm_flash_attn", "vllm.ir", "huggingface_hub"}
    flags_stubs.install(flags_stubs.Reading(root, "vllm", frozenset(hollow)))


def pretend_nvidia() -> None:
    """Let vLLM believe from here on that it runs on NVIDIA GPUs."""
    interface = importlib.import_module("vllm.platforms.interface")

    class Nvidia(interface.UnspecifiedPlatform):  # type: ignore[misc, name-defined]
        _enum = interface.PlatformEnum.CUDA
        device_type = "cuda"
        device_name = "cuda"
        dispatch_key = "CUDA"

    platforms: Any = importlib.import_module("vllm.platforms")
    platforms.current_platform = Nvidia()


def build_parser(root: Path) -> argparse.ArgumentParser:
    """Run the released code that builds the parser of `vllm serve`."""
    prepare(root)
    pretend_nvidia()
    # The released code looks at the command line: with a help argument, though not `--help` alone,
    # it also reads the descriptions, and with them what is deprecated.
    sys.argv = ["vllm", "serve", "--help=all"]
    flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    for name in PARSER_MODULES:
        if root.joinpath(*name.split(".")).with_suffix(".py").is_file():
            made: argparse.ArgumentParser = importlib.import_module(name).make_arg_parser(
                flexible(prog="vllm serve")
            )
            return made
    raise SystemExit(f"None of {', '.join(PARSER_MODULES)} is in {root}: vLLM moved its parser")


def parser_digest() -> str:
    """Fingerprint of vLLM's own way with arguments, without its texts and comments.

    The check in vllm_cluster/plan/flags repeats this code; when it changes, a person must look.
    """
    module = importlib.import_module("vllm.utils.argparse_utils")
    wanted = [
        module.FlexibleArgumentParser.parse_args,
        module.human_readable_int,
        module.human_readable_int_or_auto,
    ]
    digest = hashlib.sha256()
    for function in wanted:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


def type_name(convert: Any) -> str:
    """Name what turns the text into a value. `?` at the end: the words "" and None mean none."""
    if convert in PLAIN_TYPES:
        return PLAIN_TYPES[convert]
    name = convert.__name__
    inner = inspect.getclosurevars(convert).nonlocals if inspect.isfunction(convert) else {}
    if name == "_optional_type":
        return type_name(inner["return_type"]) + "?"
    if name == "_parse_type":
        return type_name(inner["return_type"])
    if name == "parse_dataclass":
        return "config"
    if name == "<lambda>":
        return {"a_b,2": "folded"}.get(str(convert("A-b,2")), "comma_list")
    return NAMED_TYPES[name]


def config_class(convert: Any) -> Any:
    """The configuration that an argument of the type "config" is turned into."""
    while convert.__name__ == "_optional_type":
        convert = inspect.getclosurevars(convert).nonlocals["return_type"]
    return convert.__defaults__[0]


def config_keys(config: Any) -> dict[str, Any] | None:
    """The keys that a configuration accepts as JSON, each with its own keys below.

    None where any key is accepted.
    """
    settings = getattr(config, "__pydantic_config__", None) or {}
    if settings.get("extra") != "forbid":
        return None
    keys: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.init:
            below = next(filter(dataclasses.is_dataclass, _leaves(field.type)), None)
            keys[field.name] = config_keys(below) if below else None
    return keys


def _leaves(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Annotated:
        yield from _leaves(get_args(hint)[0])
    elif get_origin(hint) is Union or type(hint).__name__ == "UnionType":
        for part in get_args(hint):
            yield from _leaves(part)
    else:
        yield hint


def deprecation(text: str) -> str:
    """The sentence that says that an argument will go, if there is one."""
    flat = " ".join(text.replace("%%", "%").split())
    for sentence in re.split(r"(?<=[.!])\s+", flat):
        if re.search(r"\b(is|are) deprecated|will be (deprecated|removed in)", sentence):
            return sentence.removeprefix("Deprecated: ")
    return ""


def default_of(action: argparse.Action) -> Any:
    """The default, if it can be written as JSON; an Ellipsis otherwise."""
    value = action.default
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if value is argparse.SUPPRESS or value in (None, [], {}):
        return ...
    try:
        json.dumps(value)
    except TypeError:
        return ...
    return value


def describe(parser: argparse.ArgumentParser, action: argparse.Action) -> dict[str, Any]:
    """One argument as a row of the table; keys at their usual value are left out."""
    every = [name for name, owner in parser._option_string_actions.items() if owner is action]
    off = getattr(action, "negative_option_strings", None)
    if off is None and isinstance(action, argparse.BooleanOptionalAction):
        off = {name for name in every if name.startswith("--no-")}
    hidden = [name for name in every if name not in action.option_strings]
    row: dict[str, Any] = {"names": [name for name in every if name not in (off or ())]}
    row["dest"] = action.dest
    if off:
        row["off"] = [name for name in every if name in off]
    if hidden:
        row["hidden_names"] = hidden
    if action.help == argparse.SUPPRESS:
        row["hidden"] = True
    row["takes"] = {None: "value", 0: "none", "?": "optional", "+": "list"}[action.nargs]
    if isinstance(action, argparse._HelpAction):
        row["exits"] = True
    if isinstance(action, argparse._AppendAction):
        row["repeats"] = True
    if action.nargs != 0:
        lora = type(action).__name__ == "LoRAParserAction"
        row["type"] = "lora" if lora else type_name(action.type)
    if str(row.get("type")).startswith("config"):
        row["keys"] = config_keys(config_class(action.type))
    if action.choices:
        row["choices"] = list(action.choices)
    default = default_of(action)
    if default is not ...:
        row["default"] = default
    if note := deprecation(action.help or ""):
        row["deprecated"] = note
    return row


def main() -> None:
    """Write the table."""
    folder, out = map(Path, sys.argv[1:])
    parser = build_parser(folder.resolve())
    options = [action for action in parser._actions if action.option_strings]
    rows = [describe(parser, action) for action in options]
    out.write_text(json.dumps({"parser": parser_digest(), "arguments": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
