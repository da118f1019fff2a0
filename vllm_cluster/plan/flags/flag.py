"""One argument of a command, as a row of the data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Keys = Mapping[str, "Keys | None"]
Takes = Literal["none", "value", "optional", "list"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One argument.

    names: the spellings that set it, the usual one first, with dashes.
    off: the spellings that unset it, such as --no-enable-prefix-caching.
    dest: the name of the value in the parsed arguments.
    takes: no value, one, at most one, or one or more.
    type: what the text is read as (values.py); "?" at the end: "" and None mean not set.
    choices: the accepted values, empty where any is accepted.
    keys: the keys accepted in a JSON value, None where any is.
    default: the value when not given, None where it is none or is decided at run time.
    deprecated: the release's own sentence, empty where the argument is to stay.
    """

    names: tuple[str, ...]
    dest: str
    takes: Takes
    off: tuple[str, ...] = ()
    type: str = ""
    choices: tuple[Any, ...] = ()
    any_case: bool = False
    keys: Keys | None = None
    default: Any = None
    repeats: bool = False
    hidden: bool = False
    hidden_names: tuple[str, ...] = ()
    exits: bool = False
    deprecated: str = ""

    @property
    def name(self) -> str:
        """The usual spelling."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Flag":
        """Read a row of the data."""
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) and key != "default" else value
            for key, value in row.items()
        }
        return cls(**fields)
