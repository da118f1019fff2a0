"""Templates to text. `templates/` mirrors the hosts' file system."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

import vllm_cluster

_PLAIN = re.compile(r"^[A-Za-z0-9@:=,./_+-]+$")


def templates() -> Path:
    """The folder of templates: in the package when installed, beside it in a checkout."""
    package = Path(vllm_cluster.__file__).parent
    installed = package / "_templates"
    return installed if installed.is_dir() else package.parent / "templates"


def render(path: str, **values: Any) -> str:
    """The text of the file that belongs at `path` on a host, from `templates/<path>.j2`."""
    return _environment().get_template(path.lstrip("/") + ".j2").render(**values)


def plain(path: str) -> str:
    """The text of a file that is the same everywhere: `templates/<path>`."""
    return (templates() / path.lstrip("/")).read_text(encoding="utf-8")


def exec_line(arguments: tuple[str, ...]) -> str:
    """An argument list as systemd's ExecStart= reads it, an option a line.

    systemd.service(5), COMMAND LINES: `%` starts a specifier, `$` a variable, a backslash an
    escape; double quotes keep spaces.
    """
    return " \\\n    ".join(_word(word) for word in arguments)


def _word(word: str) -> str:
    if _PLAIN.match(word):
        return word
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"'


def new_environment() -> jinja2.Environment:
    """jinja2 as all templates are written for it; a name that nobody gives is an error."""
    return jinja2.Environment(  # noqa: S701  files of a host, not HTML
        loader=jinja2.FileSystemLoader(templates()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _environment() -> jinja2.Environment:
    environment = new_environment()
    environment.filters["exec_line"] = exec_line
    return environment
