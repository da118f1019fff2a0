"""The arguments of one command in one version, and the check against them."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from vllm_cluster.plan.flags.clicked import ClickWalk
from vllm_cluster.plan.flags.flag import Flag
from vllm_cluster.plan.flags.flexible import Walk
from vllm_cluster.plan.flags.invented import inventions
from vllm_cluster.plan.flags.problem import FlagProblem, Kind
from vllm_cluster.plan.flags.unknown import Unknown
from vllm_cluster.plan.flags.words import Found, Given

Tool = Literal["vllm", "ray"]
DATA = Path(__file__).parent / "data"
TITLES: Mapping[Tool, str] = {"vllm": "vLLM", "ray": "Ray"}


class UnknownVersionError(Exception):
    """There is no table of this version."""

    def __init__(self, tool: Tool, version: str) -> None:
        known = ", ".join(versions(tool))
        super().__init__(
            f"The arguments of {TITLES[tool]} {version} are not known here, so none of them can "
            f"be checked. Known: {known}. Take one of these, or add the version: "
            f"make flags {tool.upper()}={version}"
        )
        self.tool = tool
        self.version = version


def versions(tool: Tool) -> tuple[str, ...]:
    """The versions that have a table, the oldest first."""
    found = [path.stem.removeprefix(f"{tool}-") for path in DATA.glob(f"{tool}-*.json")]
    return tuple(sorted(found, key=lambda each: [int(part) for part in re.findall(r"\d+", each)]))


@functools.cache
def table(tool: Tool, version: str) -> "FlagTable":
    """The table of one version. Raises UnknownVersionError, which names those that are known."""
    if version not in versions(tool):
        raise UnknownVersionError(tool, version)
    text = (DATA / f"{tool}-{version}.json").read_text(encoding="utf-8")
    data = json.loads(text)
    flags = tuple(Flag.from_row(row) for row in data["arguments"])
    return FlagTable(tool, version, data["command"], flags)


class FlagTable:
    """Every argument of `vllm serve` or `ray start` in one version."""

    def __init__(self, tool: Tool, version: str, command: str, flags: tuple[Flag, ...]) -> None:
        self.tool = tool
        self.version = version
        self.command = command
        self.flags = flags
        self.names: dict[str, Flag] = {
            name: flag for flag in flags for name in (*flag.names, *flag.off)
        }

        self.defaults: dict[str, Any] = {flag.dest: flag.default for flag in flags}

    def __contains__(self, name: str) -> bool:
        """Whether an argument of exactly this name exists, dashes and all."""
        return name in self.names

    def flag(self, name: str) -> Flag:
        """The argument of this name. Raises KeyError."""
        return self.names[name]

    def check(self, args: Sequence[str], *, words: int | None = None) -> list[FlagProblem]:
        """Everything wrong with a command line, in its order.

        args: what follows `vllm serve` or `ray start`.
        words: how many words may stand alone; by default one for vLLM, the model, and none for
            Ray. Pass 0 to check arguments that are to follow the model.
        """
        allowed = self._words(words)
        problems = [each for each in self._walk(args, allowed) if isinstance(each, FlagProblem)]
        if self.tool == "vllm" and allowed and (late := _name_before_model(args)) is not None:
            problems.append(late)
        return sorted(problems, key=lambda each: each.index)

    def values(self, args: Sequence[str], *, words: int | None = None) -> dict[str, Any]:
        """The values that the command line sets, by the name of the parsed argument (`dest`).

        Later ones replace earlier ones, as in the released parser. What is not given, or is wrong,
        is not in it: `check` first.
        """
        read: dict[str, Any] = {}
        for each in self._walk(args, self._words(words)):
            if not isinstance(each, Given):
                continue
            if each.flag.repeats and isinstance(each.value, list):
                read[each.flag.dest] = read.get(each.flag.dest, []) + each.value
            else:
                read[each.flag.dest] = each.value
        return read

    def deprecated(self, args: Sequence[str]) -> dict[str, str]:
        """The release's own notes on arguments given here that will go, by name."""
        given = (each for each in self._walk(args, len(args)) if isinstance(each, Given))
        return {each.flag.name: each.flag.deprecated for each in given if each.flag.deprecated}

    def _words(self, words: int | None) -> int:
        return int(self.tool == "vllm") if words is None else words

    def _walk(self, args: Sequence[str], words: int) -> list[Found]:
        command = f"{self.command} {self.version}"
        unknown = Unknown(
            names=self.names,
            command=command,
            inventions=inventions(self.tool),
            elsewhere=self._elsewhere,
            abbreviates=self.tool == "vllm",
        )
        walk = Walk if self.tool == "vllm" else ClickWalk
        return list(walk(self.names, command, unknown).run(args, words))

    def _elsewhere(self, name: str) -> list[str]:
        """Where a name that is unknown here exists. Loads the other tables: only for a refusal."""
        other: Tool = "ray" if self.tool == "vllm" else "vllm"
        theirs = table(other, versions(other)[-1])
        if name in theirs:
            return [f"`{theirs.command}`"]
        having = [each for each in versions(self.tool) if name in table(self.tool, each)]
        return [f"{self.command} {', '.join(having)}"] if having else []


def _name_before_model(args: Sequence[str]) -> FlagProblem | None:
    """vLLM wants the model as the first word when --served-model-name is given."""
    if not args or not args[0].startswith("-") or any(_is(arg, "--model") for arg in args):
        return None
    for index, arg in enumerate(args):
        if _is(arg, "--served-model-name"):
            sentence = "With `--served-model-name` the model must be the first word after `serve`."
            return FlagProblem(arg.partition("=")[0], index, Kind.STRAY_WORD, sentence)
    return None


def _is(arg: str, name: str) -> bool:
    return arg.replace("_", "-").partition("=")[0] == name
