"""Walk a `vllm serve` command line as vLLM's FlexibleArgumentParser does.

Written after vllm/utils/argparse_utils.py (0.26.0 to 0.33.0) and Python's argparse: underscores are
dashes in names, `-O3` is `--optimization-level 3`, dotted keys are gathered into JSON, a word that
starts with a dash is never a value unless it is a negative number or holds a space.
Two things are stricter here on purpose: abbreviations, which argparse completes, are refused, for a
later release may complete them otherwise; and `--config`, whose file nobody has checked.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from vllm_cluster.plan.flags import values
from vllm_cluster.plan.flags.flag import Flag
from vllm_cluster.plan.flags.problem import FlagProblem, Kind
from vllm_cluster.plan.flags.unknown import Unknown
from vllm_cluster.plan.flags.words import (
    Found,
    Given,
    Names,
    Word,
    missing_value,
    positional_problem,
    unexpected_value,
)

NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
JSON_TYPES = ("config", "json", "json_or_str")


def normal_words(args: Sequence[str]) -> list[Word]:
    """Spell names with dashes, and write -O and --help=… in full."""
    words = []
    for index, arg in enumerate(args):
        texts = [arg]
        if arg.startswith("--help="):
            texts = ["--help"]
        elif arg.startswith("--"):
            name, equals, value = arg.partition("=")
            stem, dot, keys = name.partition(".")
            texts = [stem.replace("_", "-") + dot + keys + equals + value]
        elif arg.startswith("-O") and arg != "-O":
            texts = ["--optimization-level", arg[3:] if arg[2] == "=" else arg[2:]]
        elif arg == "-O" and args[index + 1 : index + 2] in (["0"], ["1"], ["2"], ["3"]):
            texts = ["--optimization-level"]
        words += [Word(text, index, arg) for text in texts]
    return words


class Walk:
    """One pass over one command line."""

    def __init__(self, names: Names, command: str, unknown: Unknown) -> None:
        self.names = names
        self.command = command
        self.unknown = unknown

    def run(self, args: Sequence[str], positionals: int) -> Iterator[Found]:
        """Yield every argument with its value, and every problem, in no strict order.

        positionals: how many words may stand alone: the model, or none.
        """
        words, dotted = self._without_dotted(normal_words(args))
        yield from self._dotted_values(dotted)
        after = ""
        position = 0
        while position < len(words):
            word = words[position]
            position += 1
            if not self._is_option(word.text):
                if positionals > 0:
                    positionals -= 1
                else:
                    yield positional_problem(word, after, self.command)
                continue
            name, explicit = self._split(word.text)
            free = self._values_after(words, position) if explicit is None else []
            flag = self.names.get(name)
            if flag is None:
                yield self.unknown.problem(name, word)
                position += min(len(free), 1)  # most likely its value: one problem, not two
                continue
            taken = min(len(free), _most(flag, len(free)))
            texts = [each.text for each in free[:taken]] if explicit is None else [explicit]
            position += taken
            if flag.takes == "none" and explicit is not None:
                yield unexpected_value(word, flag, name, explicit)
            else:
                yield from self._given(flag, name, word, texts, words[position:])
            after = f"`{name}`"

    def _given(
        self, flag: Flag, name: str, word: Word, texts: Sequence[str], following: Sequence[Word]
    ) -> Iterator[Found]:
        if flag.exits:
            sentence = f"`{name}` prints a text and ends: nothing would be served."
            yield FlagProblem(name, word.index, Kind.DOES_NOT_SERVE, sentence)
        elif flag.takes == "none":
            yield Given(flag, name not in flag.off, word.index)
        elif texts:
            yield from self._read(flag, name, word, texts)
        elif flag.takes == "optional":
            yield Given(flag, True, word.index)
        else:
            yield missing_value(word, flag, following)

    def _read(self, flag: Flag, name: str, word: Word, texts: Sequence[str]) -> Iterator[Found]:
        read: list[Any] = []
        for text in texts:
            try:
                read.append(values.read(flag, text))
            except values.BadValueError as problem:
                yield value_problem(name, word.index, text, problem, flag)
                return
        if flag.dest == "config":
            yield FlagProblem(
                name,
                word.index,
                Kind.NOT_READ,
                f"`{name}` names a file of further arguments, which nobody has checked. "
                "Write them out instead.",
            )
            return
        yield Given(flag, read if flag.takes == "list" or flag.repeats else read[0], word.index)

    def _is_option(self, text: str) -> bool:
        """Whether argparse takes the word for an option (`_parse_optional` of 3.11 to 3.13)."""
        if not text.startswith("-") or text == "-":
            return False
        name = text.partition("=")[0]
        if text in self.names or name in self.names or self.unknown.completions(text):
            return True
        return not (NEGATIVE_NUMBER.fullmatch(text) or " " in text)

    def _split(self, text: str) -> tuple[str, str | None]:
        if text in self.names:
            return text, None
        name, equals, value = text.partition("=")
        if equals:
            return name, value
        if not text.startswith("--") and text[:2] in self.names:
            return text[:2], text[2:]  # -n2
        return text, None

    def _values_after(self, words: Sequence[Word], position: int) -> list[Word]:
        free = []
        for word in words[position:]:
            if self._is_option(word.text):
                break
            free.append(word)
        return free

    @staticmethod
    def _without_dotted(words: list[Word]) -> tuple[list[Word], list[tuple[Word, str | None]]]:
        """Take out `--name.key value` and `--name.key=value`: the value is always the next word."""
        rest: list[Word] = []
        dotted: list[tuple[Word, str | None]] = []
        position = 0
        while position < len(words):
            word = words[position]
            name, equals, value = word.text.partition("=")
            position += 1
            if not (word.text.startswith("-") and "." in name):
                rest.append(word)
            elif equals:
                dotted.append((Word(name, word.index, name), value))
            else:
                has_value = position < len(words)
                dotted.append((word, words[position].text if has_value else None))
                position += 1
        return rest, dotted

    def _dotted_values(self, dotted: Sequence[tuple[Word, str | None]]) -> Iterator[Found]:
        merged: dict[str, tuple[Word, dict[str, Any]]] = {}
        for word, text in dotted:
            name, *path = word.text.removesuffix("+").split(".")
            flag = self.names.get(name)
            if flag is None:
                yield self.unknown.problem(name, word)
            elif text is None:
                yield missing_value(word, flag, [])
            elif flag.type.rstrip("?") not in JSON_TYPES:
                yield FlagProblem(
                    word.written,
                    word.index,
                    Kind.BAD_VALUE,
                    f"`{name}` takes no keys after a dot: its value is not JSON.",
                    (name,),
                )
            else:
                value = _dotted_value(word.text, text)
                _merge(merged.setdefault(name, (word, {}))[1], path, value)
        for name, (word, value) in merged.items():
            yield from self._read(self.names[name], name, word, [json.dumps(value)])


def _most(flag: Flag, available: int) -> int:
    """How many words the argument takes of those that follow it."""
    return {"none": 0, "value": 1, "optional": 1, "list": available}[flag.takes]


def _dotted_value(written: str, text: str) -> Any:
    if written.endswith("+"):
        return text.split(",")
    try:
        return json.loads(text)
    except ValueError:
        try:
            return values.human_int(text)
        except ValueError:
            return text


def _merge(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value at a path; lists are joined, anything else is replaced."""
    key, *below = path
    if below:
        if not isinstance(into.get(key), dict):
            into[key] = {}
        _merge(into[key], below, value)
    elif isinstance(value, list) and isinstance(into.get(key), list):
        into[key] += value
    elif isinstance(value, dict) and isinstance(into.get(key), dict):
        for inner, under in value.items():
            _merge(into[key], [inner], under)
    else:
        into[key] = value


def value_problem(
    name: str, index: int, text: str, problem: values.BadValueError, flag: Flag
) -> FlagProblem:
    if problem.kind is Kind.UNKNOWN_KEY:
        sentence = f"The value of `{name}` has {problem.wanted}."
    else:
        sentence = f"`{name}` takes {problem.wanted}, not `{text}`."
    return FlagProblem(name, index, problem.kind, sentence, (flag.name,))
