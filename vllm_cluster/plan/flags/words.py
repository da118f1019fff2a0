"""What a walk over a command line yields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_cluster.plan.flags.flag import Flag
from vllm_cluster.plan.flags.problem import FlagProblem, Kind


@dataclass(frozen=True, slots=True)
class Word:
    """One word of the command line.

    text: as the parser takes it, underscores turned into dashes.
    index: its place in the list that the person wrote.
    written: as the person wrote it.
    """

    text: str
    index: int
    written: str


@dataclass(frozen=True, slots=True)
class Given:
    """An argument with its value: True or False for a switch, a list where several are taken."""

    flag: Flag
    value: Any
    index: int


Found = Given | FlagProblem
Names = Mapping[str, Flag]


def positional_problem(word: Word, after: str, command: str) -> FlagProblem:
    """A word that no argument takes."""
    return FlagProblem(
        word.written,
        word.index,
        Kind.STRAY_WORD,
        f"`{word.written}` belongs to no argument of {command}"
        + (f": {after} takes no further value." if after else "."),
    )


def missing_value(word: Word, flag: Flag, following: Sequence[Word]) -> FlagProblem:
    """An argument that stands without its value."""
    next_word = f", and `{following[0].written}` is the next argument" if following else ""
    what = "one of " + ", ".join(map(str, flag.choices)) if flag.choices else "a value"
    return FlagProblem(
        word.written,
        word.index,
        Kind.MISSING_VALUE,
        f"`{word.written}` needs {what}{next_word}.",
        (flag.name,),
    )


def unexpected_value(word: Word, flag: Flag, name: str, value: str) -> FlagProblem:
    """A switch that was given a value."""
    if not flag.off:
        instead = f"Write `{name}` to have it, nothing otherwise."
    else:
        instead = f"Write `{flag.name}` or `{flag.off[0]}`."
    return FlagProblem(
        name,
        word.index,
        Kind.UNEXPECTED_VALUE,
        f"`{name}` is a switch and takes no value, here `{value}`. {instead}",
        (flag.name, *flag.off[:1]),
    )
