"""The alignment table for people and for programs."""

from __future__ import annotations

from typing import Any

from vllm_cluster.plan.alignment import Cell, Table

# Beside a cell: stops the run; differs but may.
_MARKS = {"good": " ", "note": "~", "red": "!"}


def to_lines(table: Table) -> list[str]:
    """The table, a line a row, red ones with `!` before the value.

    Hosts that are equal in every row share a column, so the odd one out stands alone.
    """
    columns = _columns(table)
    titles = [_names(names) for names in columns]
    lines = []
    width = max(len(title) for title in [*table.rows, "host"])
    rows = {title: [_shown(row.get(names[0])) for names in columns]
            for title, row in table.rows.items()}  # fmt: skip
    widths = [
        max(len(title), *(len(cells[i]) for cells in rows.values()))
        for i, title in enumerate(titles)
    ]
    heads = "  ".join(title.ljust(size) for title, size in zip(titles, widths, strict=True))
    lines.append(f"{'host':<{width}}     {heads}".rstrip())
    for title, cells in rows.items():
        worst = max((_severity(table.rows[title].get(n[0])) for n in columns), default=0)
        values = "  ".join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True))
        lines.append(f"{title:<{width}}  {' ~!'[worst]} {values}".rstrip())
    return lines


def to_json(table: Table) -> dict[str, Any]:
    """`hosts`: host -> row -> {text, state: good, note or red}; `problems`: what stops the run."""
    return {
        "hosts": {
            name: {
                title: {"text": row[name].text, "state": row[name].state}
                for title, row in table.rows.items()
                if name in row
            }
            for name in table.hosts
        },
        "problems": [
            {
                "check": problem.title,
                "hosts": list(problem.hosts),
                "found": problem.found,
                "wanted": problem.wanted,
                "fix": problem.fix,
            }
            for problem in table.problems
        ],
    }


def _columns(table: Table) -> list[list[str]]:
    groups: dict[tuple[Cell | None, ...], list[str]] = {}
    for name in table.hosts:
        groups.setdefault(tuple(row.get(name) for row in table.rows.values()), []).append(name)
    return list(groups.values())


def _names(names: list[str]) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)} hosts)"


def _shown(cell: Cell | None) -> str:
    return "?" if cell is None else f"{_MARKS[cell.state]}{cell.text}"


def _severity(cell: Cell | None) -> int:
    return 0 if cell is None else ("good", "note", "red").index(cell.state)
