"""Whether pyinfra would ask a question that nobody can answer."""

from __future__ import annotations

import sys

import click

_ASKS_NOTHING = ("yes", "dry", "json_output", "debug_facts", "debug_operations")
_NO_DEPLOY = ("debug-inventory", "exec", "fact")


def unanswered() -> str:
    """Why the run that pyinfra's command line begins here cannot go on; empty where it can.

    It asks before it changes anything, and again where a host fails: with a traceback where
    standard input has ended.
    """
    told = click.get_current_context(silent=True)
    asked = told.params if told is not None else {}
    words = asked.get("operations") or _NO_DEPLOY
    if "yes" not in asked or any(asked.get(name) for name in _ASKS_NOTHING):
        return ""
    if words[0] in _NO_DEPLOY or (sys.stdin is not None and sys.stdin.isatty()):
        return ""
    return "no terminal to ask on; `pyinfra -y ...` deploys without a question, `--dry` only shows"
