"""The rank map as a picture: text for the terminal, SVG for a runbook."""

from vllm_cluster.plan.picture.rankmap import HostLabel, RankMap, rank_map
from vllm_cluster.plan.picture.svg import render_svg
from vllm_cluster.plan.picture.text import Style, render_text, style_for

__all__ = [
    "HostLabel",
    "RankMap",
    "Style",
    "rank_map",
    "render_svg",
    "render_text",
    "style_for",
]
