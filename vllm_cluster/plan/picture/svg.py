"""The rank map as SVG: one file, no scripts, no fonts of its own, for a runbook."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from vllm_cluster.plan.memory.text import gib
from vllm_cluster.plan.picture.rankmap import (
    SEGMENT_NAMES,
    GpuBox,
    HostBox,
    RankMap,
    SegmentKind,
    StageBox,
)

WIDTH = 980
_MARGIN, _PAD, _GAP = 36, 20, 12
_TILE_HEIGHT, _TILE_MAX_WIDTH, _TILES_A_ROW = 92, 214, 8
_HEADER, _STAGE_TITLE, _LINK = 46, 30, 46
_TITLE_MAX = 62  # characters of the title that fit
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
_INK, _MUTED, _LINE, _CARD = "#1f2933", "#5f6b7a", "#d5dbe3", "#f7f9fb"
#: One colour for each stage's frame, taken in turn; told apart with red-green blindness too.
_STAGES = ("#2563a8", "#b4540a", "#5b4a9e", "#0f766e", "#9d2f62", "#6b6b1f")
_COLORS: dict[SegmentKind, str] = {
    "weights": "#3b6ea8",
    "allowance": "#e3a33b",
    "kv": "#4c9f70",
    "outside": "#9aa5b1",
}
_FREE = "#e6eaf0"


def render_svg(picture: RankMap) -> str:
    """The picture as an SVG document."""
    return _Svg(picture).document()


class _Svg:
    """Draws from the top down; `y` is where the next thing goes."""

    def __init__(self, picture: RankMap) -> None:
        self.picture = picture
        self.root = Xml.Element("svg", xmlns="http://www.w3.org/2000/svg")
        self.y = _MARGIN

    def document(self) -> str:
        used = [index for index, host in enumerate(self.picture.hosts) if host.stages]
        self._title()
        for index in used:
            self._host(self.picture.hosts[index])
            link = self.picture.links[index] if index < len(self.picture.links) else ""
            if link:
                self._arrow(link)
            else:
                self.y += 18
        self._unused([host for host in self.picture.hosts if not host.stages])
        self._legend()
        height = self.y + _MARGIN
        self.root.set("width", str(WIDTH))
        self.root.set("height", str(height))
        self.root.set("viewBox", f"0 0 {WIDTH} {height}")
        self.root.set("role", "img")
        self.root.set("font-family", _FONT)
        background = Xml.Element("rect", width=str(WIDTH), height=str(height), fill="#ffffff")
        title = Xml.Element("title")
        title.text = f"{self.picture.title}: {', '.join(self.picture.subtitle)}"
        self.root.insert(0, background)
        self.root.insert(0, title)
        Xml.indent(self.root)
        return Xml.tostring(self.root, encoding="unicode") + "\n"

    def _title(self) -> None:
        self.y += 14
        name = self.picture.title
        if len(name) > _TITLE_MAX:
            name = "\N{HORIZONTAL ELLIPSIS}" + name[-_TITLE_MAX:]
        self._text(_MARGIN, self.y, name, size=22, weight="700")
        self.y += 26
        words = "  ·  ".join(self.picture.subtitle)
        self._text(_MARGIN, self.y, words, size=14, weight="600", fill=_MUTED)
        for fact in self.picture.facts:
            self.y += 20
            self._text(_MARGIN, self.y, fact, size=13, fill=_MUTED)
        self.y += 24

    def _host(self, host: HostBox) -> None:
        top, card = self.y, self._rect(_MARGIN, self.y, WIDTH - 2 * _MARGIN, 0, _CARD, _LINE, 10)
        self._text(_MARGIN + _PAD, top + 29, host.name, size=16, weight="700")
        if host.label.role:
            offset = _MARGIN + _PAD + 10 * len(host.name) + 10
            width = 8 * len(host.label.role) + 16
            self._rect(offset, top + 14, width, 21, "#e4ecf5", "none", 10)
            self._text(offset + width / 2, top + 29, host.label.role, size=12, anchor="middle")
        right = [host.label.address, host.label.nic, host.gpus]
        if host.link_gbit_s is not None:
            right.append(f"{host.link_gbit_s:g} Gbit/s")
        place = WIDTH - _MARGIN - _PAD
        shown = "  ·  ".join(word for word in right if word)
        self._text(place, top + 29, shown, size=13, fill=_MUTED, anchor="end")
        self.y = top + _HEADER
        for stage in host.stages:
            self._stage(stage)
        if host.idle:
            numbers = ", ".join(str(gpu.number) for gpu in host.idle)
            self._text(
                _MARGIN + _PAD, self.y + 14, f"GPU {numbers}: not used", size=13, fill=_MUTED
            )
            self.y += 28
        card.set("height", str(self.y - top + 4))
        self.y += 4

    def _stage(self, stage: StageBox) -> None:
        color = _STAGES[stage.stage % len(_STAGES)]
        self._text(_MARGIN + _PAD, self.y + 14, self._stage_title(stage), size=13, weight="600",
                   fill=color)  # fmt: skip
        self.y += _STAGE_TITLE - 6
        room = WIDTH - 2 * (_MARGIN + _PAD)
        columns = min(len(stage.gpus), _TILES_A_ROW)
        width = min(_TILE_MAX_WIDTH, (room - (columns - 1) * _GAP) / columns)
        for index, gpu in enumerate(stage.gpus):
            row, column = divmod(index, _TILES_A_ROW)
            left = _MARGIN + _PAD + column * (width + _GAP)
            self._gpu(gpu, left, self.y + row * (_TILE_HEIGHT + _GAP), width, color)
        rows = -(-len(stage.gpus) // _TILES_A_ROW)
        self.y += rows * (_TILE_HEIGHT + _GAP) + 6

    def _stage_title(self, stage: StageBox) -> str:
        words = [f"replica {stage.replica}"] if self.picture.replicas > 1 else []
        words.append(f"pipeline stage {stage.stage}")
        words.append(
            " + ".join([f"layers {stage.first_layer}-{stage.past_layer - 1}", *stage.ends])
        )
        if len(stage.gpus) > 1:
            words.append(f"tensor-parallel group of {len(stage.gpus)}")
        if not stage.whole:
            words.append("part of a group that spans hosts")
        return "  ·  ".join(words)

    def _gpu(self, gpu: GpuBox, left: float, top: float, width: float, color: str) -> None:
        narrow = width < 130
        self._rect(left, top, width, _TILE_HEIGHT, "#ffffff", color, 7)
        self._text(left + 11, top + 24, f"rank {gpu.rank}", size=15, weight="700")
        place = f"GPU {gpu.number}" if narrow else f"GPU {gpu.number}  ·  TP {gpu.tp_rank}"
        self._text(left + 11, top + 42, place, size=12, fill=_MUTED)
        self._bar(gpu, left + 11, top + 53, width - 22)
        total = gib(gpu.total_bytes).replace(" GiB", "" if narrow else " GiB")
        used = gib(gpu.used_bytes).replace(" GiB", "")
        self._text(left + 11, top + 81, f"{used} of {total}", size=11, fill=_MUTED)

    def _bar(self, gpu: GpuBox, left: float, top: float, width: float) -> None:
        self._rect(left, top, width, 13, _FREE, "none", 2)
        at = left
        for kind, size in gpu.segments:
            part = width * size / gpu.total_bytes
            part = max(min(part, left + width - at), 0)
            rect = self._rect(at, top, part, 13, _COLORS[kind], "none", 0)
            title = Xml.SubElement(rect, "title")
            title.text = f"{SEGMENT_NAMES[kind]}: {gib(size)}"
            at += part

    def _arrow(self, text: str) -> None:
        center, top, bottom = WIDTH / 2, self.y + 6, self.y + _LINK - 6
        Xml.SubElement(
            self.root, "path", d=f"M{center:g} {top:g} V{bottom - 7:g}", stroke=_MUTED, fill="none",
            attrib={"stroke-width": "2"},
        )  # fmt: skip
        head = f"M{center - 6:g} {bottom - 8:g} h12 l-6 9 z"
        Xml.SubElement(self.root, "path", d=head, fill=_MUTED)
        self._text(center + 16, self.y + _LINK / 2 + 5, text, size=13, fill=_MUTED)
        self.y += _LINK

    def _unused(self, hosts: Sequence[HostBox]) -> None:
        if not hosts:
            return
        names = hosts[0].name if len(hosts) == 1 else f"{hosts[0].name} to {hosts[-1].name}"
        text = f"{names}: not used ({len(hosts)} {'host' if len(hosts) == 1 else 'hosts'})"
        self.y += 8
        self._text(_MARGIN, self.y, text, size=13, fill=_MUTED)
        self.y += 16

    def _legend(self) -> None:
        self.y += 12
        at = float(_MARGIN)
        entries = [(name, _COLORS[kind]) for kind, name in SEGMENT_NAMES.items()]
        for name, color in [*entries, ("free", _FREE)]:
            self._rect(at, self.y - 10, 13, 13, color, "none", 2)
            self._text(at + 20, self.y + 1, name, size=12, fill=_MUTED)
            at += 20 + 6.6 * len(name) + 26

    def _rect(  # noqa: PLR0917 - a rectangle is four numbers and its paint
        self, x: float, y: float, width: float, height: float, fill: str, stroke: str, radius: int
    ) -> Xml.Element:
        attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}"}
        attributes |= {"height": f"{height:.1f}", "fill": fill}
        if stroke != "none":
            attributes |= {"stroke": stroke, "stroke-width": "1.5"}
        if radius:
            attributes["rx"] = str(radius)
        return Xml.SubElement(self.root, "rect", attributes)

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int,
        weight: str = "400",
        fill: str = _INK,
        anchor: str = "start",
    ) -> None:
        attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "font-size": str(size), "fill": fill}
        if weight != "400":
            attributes["font-weight"] = weight
        if anchor != "start":
            attributes["text-anchor"] = anchor
        Xml.SubElement(self.root, "text", attributes).text = text
