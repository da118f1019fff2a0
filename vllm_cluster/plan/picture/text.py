"""The rank map as text, 80 to 120 columns wide."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from vllm_cluster.plan.memory.text import gib
from vllm_cluster.plan.picture.rankmap import (
    SEGMENT_NAMES,
    GpuBox,
    HostBox,
    RankMap,
    SegmentKind,
    StageBox,
)

MIN_WIDTH, MAX_WIDTH = 80, 120
#: Hosts that are drawn one by one; of more, those in the middle are counted.
MAX_HOSTS = 8


@dataclass(frozen=True, slots=True)
class Style:
    """How to draw: characters, colours, columns."""

    unicode: bool = True
    color: bool = False
    width: int = 100


@dataclass(frozen=True, slots=True)
class _Glyphs:
    corners: str  # top left, top right, bottom left, bottom right
    line: str
    side: str
    down: str
    dots: str
    fills: Mapping[SegmentKind, str]
    free: str


_UNICODE = _Glyphs(
    corners="╭╮╰╯",
    line="─",
    side="│",
    down="▼",
    dots="⋮",
    fills={"weights": "█", "allowance": "▓", "kv": "▒", "outside": "░"},
    free="·",
)
_ASCII = _Glyphs(
    corners="++++",
    line="-",
    side="|",
    down="v",
    dots=":",
    fills={"weights": "#", "allowance": "%", "kv": "=", "outside": ":"},
    free=".",
)
_COLORS: dict[SegmentKind, str] = {
    "weights": "\x1b[34m",
    "allowance": "\x1b[33m",
    "kv": "\x1b[32m",
    "outside": "\x1b[90m",
}
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def style_for(stream: TextIO, columns: int | None = None) -> Style:
    """The style that a stream can show: colours only on a terminal, and not with NO_COLOR."""
    encoding = (getattr(stream, "encoding", None) or "ascii").lower()
    tty = bool(getattr(stream, "isatty", bool)())
    width = columns if columns is not None else 100
    return Style(
        unicode=encoding.replace("-", "") in ("utf8", "utf16", "utf32"),
        color=tty and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        width=max(MIN_WIDTH, min(MAX_WIDTH, width)),
    )


def render_text(picture: RankMap, style: Style | None = None) -> str:
    """The picture as lines joined by newlines, without one at the end."""
    return "\n".join(_Text(style or Style()).lines(picture))


class _Text:
    """Draws one picture; every method gives lines of at most the style's width."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.glyphs = _UNICODE if style.unicode else _ASCII
        self.width = max(MIN_WIDTH, min(MAX_WIDTH, style.width))

    def lines(self, picture: RankMap) -> Iterator[str]:
        yield "   ".join([self._paint(picture.title, _BOLD), *picture.subtitle])
        yield from picture.facts
        yield ""
        used = [index for index, host in enumerate(picture.hosts) if host.stages]
        shown = used if len(used) <= MAX_HOSTS else [*used[: MAX_HOSTS - 2], used[-1]]
        for before, index in zip([-1, *shown], shown, strict=False):
            hidden = [i for i in used if before < i < index]
            if hidden:
                yield f"   {self.glyphs.dots} {len(hidden)} more hosts, a stage each like these"
            yield from self._host(picture.hosts[index], picture.replicas)
            link = picture.links[index] if index < len(picture.links) else ""
            if link:
                yield f"   {self.glyphs.side} {link}"
                yield f"   {self.glyphs.down}"
        yield from self._unused([host for host in picture.hosts if not host.stages])
        yield from self._legend()

    def _host(self, host: HostBox, replicas: int) -> Iterator[str]:
        glyphs = self.glyphs
        right = "  ".join(
            part
            for part in (
                host.label.address,
                host.label.nic,
                host.gpus,
                f"{host.link_gbit_s:g} Gbit/s" if host.link_gbit_s is not None else "",
            )
            if part
        )
        name = f"{host.name}  {host.label.role}".rstrip()
        tail = f" {right} {glyphs.line}" if right else glyphs.line
        fill = self.width - len(name) - len(tail) - 5
        yield (
            f"{glyphs.corners[0]}{glyphs.line} {self._paint(name, _BOLD)} "
            f"{glyphs.line * max(fill, 1)}{tail}{glyphs.corners[1]}"
        )
        for stage in host.stages:
            yield self._row(self._stage_title(stage, replicas))
            for gpu in stage.gpus:
                yield self._gpu(gpu)
        if host.idle:
            yield self._row(self._idle(host.idle))
        bottom = glyphs.line * (self.width - 2)
        yield f"{glyphs.corners[2]}{bottom}{glyphs.corners[3]}"

    def _unused(self, hosts: Sequence[HostBox]) -> Iterator[str]:
        if len(hosts) == 1:
            yield f"{hosts[0].name} is not used ({hosts[0].gpus})"
        elif hosts:
            names = f"{hosts[0].name} to {hosts[-1].name}"
            yield f"{len(hosts)} hosts are not used: {names} ({hosts[0].gpus} each)"

    def _stage_title(self, stage: StageBox, replicas: int) -> str:
        last = stage.past_layer - 1
        words = [f"replica {stage.replica}"] if replicas > 1 else []
        words.append(f"stage {stage.stage}")
        layers = f"layers {stage.first_layer}-{last}"
        words.append(" + ".join([layers, *stage.ends]))
        ranks = [gpu.rank for gpu in stage.gpus if gpu.rank is not None]
        if len(ranks) > 1:
            part = "" if stage.whole else ", part of a group over hosts"
            words.append(f"TP group of ranks {ranks[0]}-{ranks[-1]}{part}")
        return "   ".join(words)

    def _gpu(self, gpu: GpuBox) -> str:
        left = f"GPU {gpu.number:<2} rank {gpu.rank:<3} tp {gpu.tp_rank:<2} "
        right = f"  {gib(gpu.used_bytes):>9} of {gib(gpu.total_bytes)}"
        room = self.width - 4 - len(left) - len(right)
        bar, painted = self._bar(gpu, room)
        return self._row(left + bar + right, left + painted + right)

    def _bar(self, gpu: GpuBox, room: int) -> tuple[str, str]:
        """The bar plain, to count its columns, and painted."""
        plain, painted, drawn, reached = "", "", 0, 0
        for kind, size in gpu.segments:
            reached += size
            # What is there is seen: a part has a column of its own, however small.
            upto = max(round(room * reached / gpu.total_bytes), drawn + (size > 0))
            cells = min(room, upto) - drawn
            part = self.glyphs.fills[kind] * max(cells, 0)
            plain += part
            painted += self._paint(part, _COLORS[kind])
            drawn += len(part)
        rest = self.glyphs.free * (room - drawn)
        return plain + rest, painted + self._paint(rest, _DIM)

    def _idle(self, gpus: Sequence[GpuBox]) -> str:
        numbers = ", ".join(str(gpu.number) for gpu in gpus)
        return f"GPU {numbers} unused ({gpus[0].name}, {gib(gpus[0].total_bytes)})"

    def _legend(self) -> Iterator[str]:
        parts = [
            f"{self._paint(self.glyphs.fills[kind], _COLORS[kind])} {name}"
            for kind, name in SEGMENT_NAMES.items()
        ]
        yield "   ".join([*parts, f"{self.glyphs.free} free"])

    def _row(self, text: str, painted: str | None = None) -> str:
        """A line between the sides of a box."""
        room = self.width - 4
        if len(text) > room:
            text, painted = text[: room - 3] + "...", None
        pad = " " * (room - len(text))
        return f"{self.glyphs.side} {painted or text}{pad} {self.glyphs.side}"

    def _paint(self, text: str, code: str) -> str:
        return f"{code}{text}{_PLAIN}" if self.style.color and text else text
