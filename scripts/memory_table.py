"""Write the table of public models into docs/memory.md.

Run as `python scripts/memory_table.py`; with --check it only says whether the
table is what the code gives now.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from vllm_cluster.model.local import read_model
from vllm_cluster.plan.decide import decide
from vllm_cluster.plan.decision import Ask, Decision
from vllm_cluster.plan.memory.facts import GIB, HostFacts, ModelFacts, Serving
from vllm_cluster.plan.memory.gpus import gpu_by_name

REPOSITORY = Path(__file__).resolve().parents[1]
MODELS = REPOSITORY / "tests" / "fixtures" / "models"
PAGE = REPOSITORY / "docs" / "memory.md"
BEGIN, END = "<!-- table of public models: begin -->", "<!-- table of public models: end -->"
MAX_MODEL_LEN = 8192
UTILIZATION = 0.9
#: The machines of the table: hosts, GPUs on each, GPU, Gbit/s.
MACHINES = ((2, 4, "A100-80GB", 25.0), (2, 8, "H100-80GB", 100.0))


def table() -> str:
    """The table in Markdown, smallest model first."""
    found = [_model(folder) for folder in MODELS.iterdir() if folder.is_dir()]
    found.sort(key=lambda pair: pair[0].stored_bytes)
    return "\n".join([*_head(), *(_row(facts, published) for facts, published in found)])


def _model(folder: Path) -> tuple[ModelFacts, dict[str, str | int]]:
    published = json.loads((folder / "published.json").read_text())
    return read_model(folder, name=published["repo"]), published


def _head() -> Iterator[str]:
    machines = [f"{hosts} x {gpus} x {gpu}" for hosts, gpus, gpu, _ in MACHINES]
    columns = ["model", "attention", "bytes by the plan", "bytes published", "difference"]
    columns += [f"{machine}: layout" for machine in machines]
    columns += ["weights per GPU", "KV bytes a token and GPU", "KV tokens"]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * 2 + " ---: |" * 3 + " --- |" * len(machines) + " ---: |" * 3


def _row(facts: ModelFacts, published: dict[str, str | int]) -> str:
    size = int(published["published_bytes"])
    cells = [
        f"[{published['repo']}]({published['source']})",
        _kind(facts),
        f"{facts.stored_bytes:,}",
        f"{size:,} ({published['published']})",
        f"{facts.stored_bytes / size - 1:+.4%}" if facts.stored_bytes != size else "0",
    ]
    answers = [_decide(facts, *machine) for machine in MACHINES]
    cells += [_layout(answer) for answer in answers]
    cells += _numbers(answers[-1])
    return "| " + " | ".join(cells) + " |"


def _kind(facts: ModelFacts) -> str:
    kinds = {a.kind for a in facts.attention}
    if facts.mla is not None:
        word = "MLA"
    elif "sliding" in kinds:
        word = "sliding and full" if len(kinds) > 1 else "sliding"
    else:
        word = "MHA" if facts.kv_heads == facts.query_heads else f"GQA {facts.kv_heads}"
    parts = [word]
    if facts.experts is not None:
        parts.append(f"{facts.experts.count} experts")
    if facts.quantization is not None:
        parts.append(facts.quantization.method)
    if facts.runner == "pooling":
        parts.append("embedding")
    return ", ".join(parts)


def _decide(facts: ModelFacts, hosts: int, gpus: int, gpu: str, link: float) -> Decision:
    machines = [HostFacts(f"node-{i}", gpus, gpu_by_name(gpu), link) for i in range(hosts)]
    length = min(MAX_MODEL_LEN, facts.default_max_model_len)
    serving = Serving(max_model_len=length, gpu_memory_utilization=UTILIZATION)
    return decide(facts, machines, Ask(serving=serving))


def _layout(answer: Decision) -> str:
    if answer.verdict == "refused":
        return "refused"
    assert answer.layout is not None  # noqa: S101 - a fitting decision has one
    return f"{answer.shape}, {answer.layout}" if answer.layout.gpus > 1 else "one GPU"


def _numbers(answer: Decision) -> list[str]:
    if answer.verdict == "refused" or answer.fit is None:
        return ["-", "-", "-"]
    weights = max(rank.weights.total_bytes for rank in answer.fit.ranks)
    if not answer.fit.blocks_per_request:
        return [f"{weights / GIB:.2f} GiB", "none", "-"]
    return [
        f"{weights / GIB:.2f} GiB",
        f"{answer.fit.kv_token_bytes:,}",
        f"{answer.fit.kv_tokens:,}",
    ]


def page_with(text: str) -> str:
    """docs/memory.md with the table in its place."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    """Write the page, or check it."""
    wanted = page_with(table())
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text(encoding="utf-8") == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
