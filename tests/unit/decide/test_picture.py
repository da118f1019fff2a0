"""The rank map as text and SVG."""

from __future__ import annotations

import io
from xml.etree import ElementTree as Xml

import pytest

from tests.unit.decide.test_decide_layout import answer, hosts
from vllm_cluster.plan.memory.facts import HostFacts, Layout
from vllm_cluster.plan.picture import (
    HostLabel,
    RankMap,
    Style,
    rank_map,
    render_svg,
    render_text,
    style_for,
)

SVG = "{http://www.w3.org/2000/svg}"
LABELS = {
    "node-a": HostLabel("192.168.1.10", "enp1s0f0", "head"),
    "node-b": HostLabel("192.168.1.11", "enp1s0f0", "worker"),
}


def example(machines: list[HostFacts] | None = None) -> RankMap:
    """The 70B model at TP=4 x PP=2 over two hosts of four GPUs."""
    machines = machines or hosts(2, 4, "A100")
    found = answer("Llama-3.3-70B-Instruct", machines, layout=Layout(4, 2), force_multi_node=True)
    return rank_map(found, machines, LABELS)


def test_every_rank_host_and_stage_is_in_the_text() -> None:
    text = render_text(example())
    assert [f"rank {n} " in text for n in range(9)] == [True] * 8 + [False]
    for words in (
        "node-a  head",
        "192.168.1.11  enp1s0f0  4 x A100-80GB  25 Gbit/s",
        "stage 0   layers 0-39 + embedding   TP group of ranks 0-3",
        "stage 1   layers 40-79 + head   TP group of ranks 4-7",
        "stage boundary, 32.0 KiB a token",
    ):
        assert words in text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_boxes_are_as_wide_as_asked(width: int) -> None:
    text = render_text(example(), Style(width=width))
    boxes = [line for line in text.splitlines() if line.startswith(("╭", "│", "╰"))]
    assert {len(line) for line in boxes} == {width}


def test_without_unicode_the_picture_is_ascii() -> None:
    text = render_text(example(), Style(unicode=False))
    assert text.isascii()
    assert "layers 40-79" in text


def test_colour_only_where_it_is_asked_for() -> None:
    assert "\x1b[" not in render_text(example(), Style(color=False))
    assert "\x1b[34m" in render_text(example(), Style(color=True))


def test_colour_does_not_change_the_columns() -> None:
    import re  # noqa: PLC0415

    plain = render_text(example(), Style(color=False))
    painted = render_text(example(), Style(color=True))
    assert re.sub(r"\x1b\[\d+m", "", painted) == plain


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colour_and_a_file_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert style_for(_Terminal(), 90) == Style(unicode=True, color=True, width=90)
    assert not style_for(io.TextIOWrapper(io.BytesIO(), "ascii")).unicode
    assert not style_for(io.TextIOWrapper(io.BytesIO(), "utf-8")).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not style_for(_Terminal()).color


def test_a_bar_is_as_long_as_its_share() -> None:
    picture = example()
    gpu = picture.hosts[0].stages[0].gpus[0]
    line = next(x for x in render_text(picture).splitlines() if "rank 0 " in x)
    bar = [c for c in line if c in "█▓▒░·"]
    weights = dict(gpu.segments)["weights"]
    assert abs(bar.count("█") / len(bar) - weights / gpu.total_bytes) <= 1 / len(bar)


def test_idle_gpus_and_hosts_are_named_and_many_hosts_are_counted() -> None:
    machines = hosts(2, 4, "A100")
    small = rank_map(answer("Llama-3.1-8B-Instruct", machines), machines)
    text = render_text(small)
    assert "GPU 1, 2, 3 unused" in text
    assert "node-b is not used" in text
    machines = [HostFacts(f"n{i:02}", 8, machines[0].gpu, 25.0) for i in range(64)]
    found = answer("Llama-3.1-405B-Instruct", machines, layout=Layout(8, 42), force_multi_node=True)
    text = render_text(rank_map(found, machines))
    assert "35 more hosts, a stage each like these" in text
    assert "22 hosts are not used: n42 to n63" in text
    assert len(text.splitlines()) < 120


def test_the_svg_is_xml_with_every_rank_and_a_share_for_every_part() -> None:
    root = Xml.fromstring(render_svg(example()))  # noqa: S314 - our own
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert [f"rank {n}" in words for n in range(9)] == [True] * 8 + [False]
    assert {"node-a", "node-b", "head", "worker"} <= set(words)
    parts = [r for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    assert len(parts) == 8 * 4
    assert root.find(f"{SVG}title") is not None
    assert not [e for e in root.iter() if e.tag.endswith(("script", "image", "style"))]


def test_names_are_escaped_in_the_svg() -> None:
    machines = [HostFacts("<a&b>", 1, hosts(1, 1, "A100")[0].gpu)]
    found = answer("Llama-3.1-8B-Instruct", machines)
    root = Xml.fromstring(render_svg(rank_map(found, machines)))  # noqa: S314 - our own
    assert "<a&b>" in [element.text for element in root.iter(f"{SVG}text")]


def test_a_refusal_without_a_layout_has_no_picture() -> None:
    machines = hosts(1, 1, "L4")
    with pytest.raises(ValueError, match="no picture"):
        rank_map(answer("DeepSeek-V3", machines), machines)
