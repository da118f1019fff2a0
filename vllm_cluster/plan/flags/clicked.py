"""Walk a `ray start` command line as click does.

Ray's command is a plain click command (ray/scripts/scripts.py, 2.48.0 to 2.60.0): no abbreviations,
underscores are not dashes, and no words stand alone. Click takes the word after an option as its
value whatever it looks like; here a word that is itself an option of the command is never a value,
for `--node-ip-address --head` starts a cluster at the address "--head" and no head.
"""

from collections.abc import Iterator, Sequence

from vllm_cluster.plan.flags import values
from vllm_cluster.plan.flags.flag import Flag
from vllm_cluster.plan.flags.flexible import value_problem
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


class ClickWalk:
    """One pass over one command line."""

    def __init__(self, names: Names, command: str, unknown: Unknown) -> None:
        self.names = names
        self.command = command
        self.unknown = unknown

    def run(self, args: Sequence[str], positionals: int) -> Iterator[Found]:
        """Yield every option with its value, and every problem; `positionals` words may stand."""
        words = [Word(text, index, text) for index, text in enumerate(args)]
        position = 0
        after = ""
        while position < len(words):
            word = words[position]
            position += 1
            if not word.text.startswith("-") or word.text == "-":
                positionals -= 1
                if positionals < 0:
                    yield positional_problem(word, after, self.command)
                continue
            name, equals, explicit = word.text.partition("=")
            flag = self.names.get(name)
            if flag is None and self._are_switches(word.text):
                continue
            if flag is None:
                yield self.unknown.problem(name, word)
                position += int(not equals and self._is_value(words, position))
                continue
            after = f"`{name}`"
            if flag.takes == "none":
                yield self._switch(flag, name, word, explicit if equals else None)
            elif equals:
                yield self._value(flag, name, word, explicit)
            elif position < len(words) and words[position].text.partition("=")[0] not in self.names:
                yield self._value(flag, name, word, words[position].text)
                position += 1
            else:
                yield missing_value(word, flag, words[position:])

    def _are_switches(self, text: str) -> bool:
        """Whether a word is several short switches in one, such as -vv."""
        flags = [self.names.get(f"-{letter}") for letter in text[1:]]
        return all(flag is not None and flag.takes == "none" for flag in flags)

    @staticmethod
    def _is_value(words: Sequence[Word], position: int) -> bool:
        return position < len(words) and not words[position].text.startswith("-")

    @staticmethod
    def _switch(flag: Flag, name: str, word: Word, explicit: str | None) -> Found:
        if explicit is not None:
            return unexpected_value(word, flag, name, explicit)
        if flag.exits:
            sentence = f"`{name}` prints a text and ends: nothing would be started."
            return FlagProblem(name, word.index, Kind.DOES_NOT_SERVE, sentence)
        return Given(flag, name not in flag.off, word.index)

    @staticmethod
    def _value(flag: Flag, name: str, word: Word, text: str) -> Found:
        try:
            return Given(flag, values.read(flag, text), word.index)
        except values.BadValueError as problem:
            return value_problem(name, word.index, text, problem, flag)
