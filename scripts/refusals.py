#!/usr/bin/env python3
"""Write docs/refusals.md, the list of combinations that are refused, from the rules.

python -m scripts.refusals      (or: make refusals)
"""

import sys
from pathlib import Path

from vllm_cluster.plan.flags import versions
from vllm_cluster.plan.refuse.every import BOOKS
from vllm_cluster.plan.refuse.rule import Rule

PAGE = Path(__file__).resolve().parents[1] / "docs/refusals.md"
HEAD = """# What is refused before it is tried

vLLM refuses many combinations of arguments, most of them minutes into a start, on one host of
several, in the words of its own code. The plan refuses them first and says what to write instead.
Each rule was read in the released sources of vLLM {known}; the file is named, and where the rule
differs between releases, the releases too. `make flags VLLM=x.y.z` looks in a new release for what
each rule quotes, and names those to read again.

{count} rules. This page is written by `make refusals`.
"""


def releases(rule: Rule) -> str:
    """In which of the releases that were read the rule holds."""
    known = versions("vllm")
    holds = [each for each in known if rule.applies_to(each)]
    if len(holds) == len(known):
        return "all"
    return f"from {holds[0]}" if holds[-1] == known[-1] else f"to {holds[-1]}"


def page() -> str:
    """The text of docs/refusals.md."""
    known = versions("vllm")
    count = sum(len(module.BOOK.rules) for module in BOOKS)
    lines = [HEAD.format(known=", ".join(known), count=count)]
    for module in BOOKS:
        lines += [f"## {(module.__doc__ or '').strip().rstrip('.')}", ""]
        lines += ["| rule | refused | releases | read in |", "|---|---|---|---|"]
        lines += [
            f"| `{rule.id}` | {rule.about} | {releases(rule)} | `{rule.file}` |"
            for rule in module.BOOK.rules
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")


if __name__ == "__main__":
    main()
