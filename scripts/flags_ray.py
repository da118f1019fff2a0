"""Read the options of `ray start` from an unpacked Ray wheel.

Run as `python -m scripts.flags_ray FOLDER OUT` in a process of its own; writes JSON to OUT.
The module of Ray's command line runs as released, with everything else of Ray replaced
(see flags_stubs); the options are then read from the click command.
"""

import json
import sys
from pathlib import Path
from typing import Any

import click

from scripts import flags_stubs

# What ray/scripts/scripts.py takes the defaults and texts of its options from.
KEPT = frozenset(
    {
        "ray.scripts.scripts",
        "ray._private.ray_constants",
        "ray._common.constants",
        "ray._common.network_utils",
        "ray._common.utils",
        "ray.autoscaler._private.cli_logger",
        "ray.autoscaler._private.constants",
        "ray.util.annotations",
    }
)
TYPES = {"text": "str", "integer": "int", "float": "float", "boolean": "bool", "choice": "str"}


def start_command(root: Path) -> click.Command:
    """Run the released code that defines `ray start`."""
    flags_stubs.install(flags_stubs.Reading(root, "ray", frozenset({"ray"}), KEPT))
    from ray.scripts.scripts import start  # type: ignore[import-not-found]  # noqa: PLC0415

    if not isinstance(start, click.Command):
        raise SystemExit(f"`start` in {root}/ray/scripts/scripts.py is no click command")
    return start


def describe(option: click.Option) -> dict[str, Any]:
    """One option as a row of the table; keys at their usual value are left out."""
    row: dict[str, Any] = {"names": list(option.opts), "dest": option.name}
    if option.secondary_opts:
        row["off"] = list(option.secondary_opts)
    if option.hidden:
        row["hidden"] = True
    bare = option.is_flag or option.count
    row["takes"] = "none" if bare else "value"
    if option.count or option.multiple:
        row["repeats"] = True
    if not bare:
        if option.nargs != 1:
            raise SystemExit(f"{option.opts} takes {option.nargs} values: not foreseen")
        row["type"] = TYPES.get(option.type.name, "json")  # --system-config is json.loads
    if isinstance(option.type, click.Choice):
        row["choices"] = list(option.type.choices)
        row["any_case"] = not option.type.case_sensitive
    if option.default is not False and isinstance(option.default, (int, float, str)):
        row["default"] = option.default
    if option.deprecated:
        row["deprecated"] = str(option.deprecated)
    return row


def main() -> None:
    """Write the table."""
    folder, out = map(Path, sys.argv[1:])
    command = start_command(folder.resolve())
    rows = [describe(each) for each in command.params if isinstance(each, click.Option)]
    rows.append({"names": ["--help"], "dest": "help", "takes": "none", "exits": True})
    out.write_text(json.dumps({"parser": "click", "arguments": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
