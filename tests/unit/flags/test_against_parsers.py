"""The check says yes and no where Python's argparse and click, built from the same table, do.

The way with names (underscores, dotted keys, -O) is vLLM's own and is held against the real vLLM in
the lab; here are the rules about values, lists, switches and order, for thousands of command lines.
"""

import argparse
import contextlib
import io
import json
from typing import Any

import click
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vllm_cluster.plan.flags import Flag, FlagTable, Kind, table

VLLM = table("vllm", "0.33.0")
RAY = table("ray", "2.60.0")
CONVERT: dict[str, Any] = {"int": int, "float": float, "json": json.loads}
WORDS = ["3", "-3", "-1", "0.5", "x", "", "-", "a b", "-a b", "auto", "true", "None", '{"a": 1}']
WORDS += ["-x", "--nothing", "--port", "-tp", "--enforce-eager", "--port=1", "-tp=2", "-n2", "--"]
WORDS.remove("--")  # ends the options; nobody writes it here


class RefusedError(Exception):
    """The other parser refused the command line."""


class Quiet(argparse.ArgumentParser):
    """Raises instead of ending the process."""

    def error(self, message: str) -> Any:
        raise RefusedError(message)


def simple(flag: Flag) -> bool:
    """Whether argparse alone can stand for the argument, without vLLM's own conversions."""
    kinds = {"", "str", "int", "float", "json"}
    return flag.type in kinds and not flag.exits and flag.dest not in ("config", "model")


def argparse_of(known: FlagTable) -> argparse.ArgumentParser:
    parser = Quiet(add_help=False, prog="vllm serve")
    parser.add_argument("model_tag", nargs="?")
    for flag in filter(simple, known.flags):
        options: dict[str, Any] = {"dest": flag.dest}
        if flag.takes == "none":
            parser.add_argument(*flag.names, action="store_true", **options)
            if flag.off:
                parser.add_argument(*flag.off, action="store_false", **options)
            continue
        options["nargs"] = {"value": None, "optional": "?", "list": "+"}[flag.takes]
        options["type"] = CONVERT.get(flag.type, str)
        options["choices"] = list(flag.choices) or None
        parser.add_argument(*flag.names, **options)
    return parser


ARGPARSE = argparse_of(VLLM)
NAMES = st.sampled_from(sorted(n for f in filter(simple, VLLM.flags) for n in (*f.names, *f.off)))
VALUES = st.sampled_from(
    WORDS + sorted({str(choice) for flag in VLLM.flags for choice in flag.choices})
)
PIECES = st.one_of(
    NAMES.map(lambda name: [name]),
    st.tuples(NAMES, VALUES).map(list),
    st.tuples(NAMES, VALUES).map(lambda both: [f"{both[0]}={both[1]}"]),
    VALUES.map(lambda value: [value]),
)
LINES = st.lists(PIECES, max_size=4).map(lambda pieces: [word for each in pieces for word in each])


@settings(max_examples=400, deadline=None)
@given(LINES)
def test_vllm_s_values_are_taken_where_argparse_takes_them(line: list[str]) -> None:
    args = ["org/model", *line]
    assume(not any(word.startswith("-") and "." in word.partition("=")[0] for word in args))
    problems = VLLM.check(args)
    assume(not any(each.kind in (Kind.ABBREVIATION, Kind.DOES_NOT_SERVE) for each in problems))
    try:
        ARGPARSE.parse_args(args)
        taken = True
    except RefusedError:
        taken = False
    assert (problems == []) == taken, problems


def click_of(known: FlagTable) -> click.Command:
    kinds: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool}
    options: list[click.Parameter] = []
    for flag in known.flags:
        if flag.exits or flag.type == "json":
            continue
        if flag.takes == "none":
            options.append(click.Option(list(flag.names), is_flag=True, multiple=False))
            continue
        kind = kinds[flag.type]
        if flag.choices:
            kind = click.Choice(list(flag.choices), case_sensitive=not flag.any_case)
        options.append(click.Option(list(flag.names), type=kind))
    return click.Command("start", params=options, callback=lambda **_: None)


CLICK = click_of(RAY)
RAY_NAMES = st.sampled_from(
    sorted(name for f in RAY.flags if not f.exits and f.type != "json" for name in f.names)
)
RAY_VALUES = st.sampled_from(["3", "-3", "0.5", "x", "yes", "OFF", "-", "a b", "pretty", "--zz"])
RAY_LINES = st.lists(
    st.one_of(
        RAY_NAMES.map(lambda name: [name]),
        st.tuples(RAY_NAMES, RAY_VALUES).map(list),
        st.tuples(RAY_NAMES, RAY_VALUES).map(lambda both: [f"{both[0]}={both[1]}"]),
        RAY_VALUES.map(lambda value: [value]),
    ),
    max_size=4,
).map(lambda pieces: [word for each in pieces for word in each])


@settings(max_examples=400, deadline=None)
@given(RAY_LINES)
def test_ray_s_values_are_taken_where_click_takes_them(line: list[str]) -> None:
    problems = RAY.check(line)
    # Stricter on purpose: an option is never the value of the one before it.
    assume(
        not any(each.kind is Kind.MISSING_VALUE and each.index + 1 < len(line) for each in problems)
    )
    # Stricter also here: of an option given twice, click reads only the last value.
    names = [word.partition("=")[0] for word in line if word.startswith("--")]
    assume(len(names) == len(set(names)))
    taken = True
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            CLICK.main(line, standalone_mode=False)
        except click.ClickException:
            taken = False
    assert (problems == []) == taken, problems


def test_the_reference_refuses_and_takes() -> None:
    ARGPARSE.parse_args(["m", "--port", "1"])
    with pytest.raises(RefusedError):
        ARGPARSE.parse_args(["m", "--port", "x"])
    CLICK.main(["--port", "1"], standalone_mode=False)
    with pytest.raises(click.ClickException):
        CLICK.main(["--port", "x"], standalone_mode=False)
