"""What is wrong with one argument, said for the person who wrote it."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is wrong."""

    UNKNOWN = "unknown"  # no such argument in this version
    ABBREVIATION = "abbreviation"  # argparse would guess; a later version may guess otherwise
    MISSING_VALUE = "missing value"
    UNEXPECTED_VALUE = "unexpected value"  # a value for a plain switch
    BAD_CHOICE = "bad choice"
    NOT_A_NUMBER = "not a number"
    NOT_JSON = "not JSON"
    BAD_VALUE = "bad value"
    UNKNOWN_KEY = "unknown key"  # in a JSON or dotted value
    STRAY_WORD = "stray word"  # a value that no argument takes
    DOES_NOT_SERVE = "does not serve"  # --help: prints and ends
    NOT_READ = "not read"  # --config: arguments in a file that nobody checked


@dataclass(frozen=True, slots=True)
class FlagProblem:
    """One argument that the command would refuse, or that must not be relied upon.

    argument: as it was written, without its value.
    index: its place in the list that was checked, from 0.
    nearest: real names of this version that may have been meant, the likeliest first.
    sentence: what is wrong and what to write instead.
    """

    argument: str
    index: int
    kind: Kind
    sentence: str
    nearest: tuple[str, ...] = ()
