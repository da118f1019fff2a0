"""What to say about an argument that a version does not have."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vllm_cluster.plan.flags.flag import Flag
from vllm_cluster.plan.flags.invented import Invention
from vllm_cluster.plan.flags.problem import FlagProblem, Kind
from vllm_cluster.plan.flags.words import Names, Word

# Words that say little about which argument is meant.
COMMON = frozenset({"enable", "disable", "no", "max", "min", "use", "size", "num", "the", "config"})
CLOSE = 0.75  # of difflib's ratio; below it, suggestions puzzle more than they help


@dataclass(frozen=True)
class Unknown:
    """Explains names that are not in the table.

    inventions: names that people write though they do not exist, with what to write instead.
    elsewhere: says where else a name exists, such as "`ray start`" or "vllm serve 0.26.0".
    """

    names: Names
    command: str
    inventions: dict[str, Invention]
    elsewhere: Callable[[str], Sequence[str]]
    abbreviates: bool

    def completions(self, text: str) -> list[str]:
        """Names that argparse would complete `text` to."""
        if not self.abbreviates or not text.startswith("-") or text in ("-", "--"):
            return []
        start = text.partition("=")[0] if text.startswith("--") else text
        return [name for name in self.names if name.startswith(start)]

    def problem(self, name: str, word: Word) -> FlagProblem:
        """Explain `name`, which the table does not hold."""
        argument = word.written.partition("=")[0]
        dashed = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
        if invention := self.inventions.get(dashed):
            instead = invention.instead_in(self.names)
            sentence = f"`{argument}` is no argument of {self.command}. {invention.text(instead)}"
            return FlagProblem(argument, word.index, Kind.UNKNOWN, sentence, instead)
        if dashed in self.names:
            sentence = f"`{argument}` is written with dashes: `{dashed}`."
            return FlagProblem(argument, word.index, Kind.UNKNOWN, sentence, (dashed,))
        if full := self.completions(name):
            return _abbreviation(argument, word.index, full, self.names)
        nearest = self.nearest(dashed)
        sentence = f"`{argument}` is no argument of {self.command}"
        if places := self.elsewhere(dashed):
            sentence += f", but of {' and '.join(places)}"
        sentence += f". Nearest: {', '.join(nearest)}." if nearest else "."
        return FlagProblem(argument, word.index, Kind.UNKNOWN, sentence, nearest)

    def nearest(self, name: str) -> tuple[str, ...]:
        """Up to three names that may have been meant, the likeliest first."""
        lowered = name.lower()
        if not name.startswith("--"):
            return tuple(dict.fromkeys(self._short(lowered)))[:3]
        known = [each for each in self.names if each.startswith("--")]
        close = difflib.get_close_matches(lowered, known, n=3, cutoff=CLOSE)
        words = set(_words(lowered)) - COMMON
        alike = [each for each in known if words and words <= set(_words(each))]
        alike.sort(key=lambda each: (len(_words(each)), each))
        return tuple(dict.fromkeys([*close, *alike]))[:3]

    def _short(self, name: str) -> Iterable[str]:
        """`-tp2` is meant as `-tp 2`, `-max-model-len` as `--max-model-len`."""
        bare = name.rstrip("0123456789")
        if bare in self.names:
            yield bare
        if "-" + name in self.names:
            yield "-" + name
        short = [each for each in self.names if not each.startswith("--")]
        yield from difflib.get_close_matches(name, short, n=2, cutoff=CLOSE)


def _words(name: str) -> list[str]:
    return name.strip("-").split("-")


def _abbreviation(argument: str, index: int, full: Sequence[str], names: Names) -> FlagProblem:
    flags: list[Flag] = []
    for name in full:
        if names[name] not in flags:
            flags.append(names[name])
    if len(full) == 1:
        sentence = f"`{argument}` is short for `{full[0]}`. Write it in full: what it is short for "
        sentence += "may differ in the next release."
    else:
        sentence = f"`{argument}` may be {', '.join(full[:4])}. Write the one that is meant."
    return FlagProblem(argument, index, Kind.ABBREVIATION, sentence, tuple(full[:4]))
