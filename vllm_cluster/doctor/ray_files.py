"""Ray's own files: when a line was written, whether it complains, and which rank wrote it.

Three kinds of lines: Ray's C++ ("[2026-01-02 03:04:05,678 E 77 91] (raylet) file.cc:9: …"), Ray's
Python ("2026-01-02 03:04:05,678 ERROR agent.py:9 -- …") and vLLM's ("ERROR 01-02 03:04:05 […] …").
What has no such beginning, a traceback, is as old as the line before it.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterable, Iterator
from time import gmtime, strptime

from vllm_cluster.doctor.first_cause import message
from vllm_cluster.facts.doctor.model import RayFile

_RAY = re.compile(r"^\[?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.]\d+\s+([A-Z]+) ")
_VLLM = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d)\b")
# Every raylet tells of /dev/shm when it starts, and vLLM of memory: that is no complaint.
_CALM = {"D", "I", "DEBUG", "INFO"}
_PID = re.compile(r"^worker-\w+-\w+-(\d+)\.(?:err|out)$|^python-core-worker-\w+_(\d+)\.log$")
_RANK = re.compile(r"rank (\d+) in world size \d+ is assigned")
_SPEAKER = re.compile(r"pid=(\d+)(?:, ip=([\d.]+))?")


def of_a_worker(file: RayFile) -> bool:
    """Whether vLLM wrote it, whose processes come and go in one life of Ray."""
    return file.name.startswith(("worker-", "python-core-"))


def complaints(file: RayFile) -> Iterator[tuple[float, str]]:
    """Time and words of every line that is more than news.

    Containers keep UTC. vLLM names no year, so the file's is taken.
    """
    time_s = file.changed_s
    for raw in file.lines:
        words, calm = message(raw)[1], False
        if match := _RAY.match(words):
            time_s, calm = _time(match[1]), match[2] in _CALM
        elif match := _VLLM.search(words):
            time_s, calm = _time(f"{gmtime(file.changed_s).tm_year}-{match[2]}"), match[1] in _CALM
        if not calm:
            yield time_s, words


def _time(text: str) -> float:
    try:
        return float(timegm(strptime(text, "%Y-%m-%d %H:%M:%S")))
    except ValueError:
        return 0.0  # the 29th of February in another year


def rank_words(file: RayFile, rank_lines: Iterable[str], address: str) -> str:
    """Which rank wrote `file` on the host of that address, by vLLM's own log or the file itself;
    the process where neither says."""
    match = _PID.match(file.name)
    if match is None:
        return ""
    pid = match[1] or match[2]
    for line in rank_lines:
        speaker, rank = _SPEAKER.search(line), _RANK.search(line)
        if speaker and rank and speaker[1] == pid and speaker[2] in {address, None}:
            return f"rank {rank[1]}, process {pid}"
    own = next((found[1] for line in file.lines if (found := _RANK.search(line))), "")
    return f"rank {own}, process {pid}" if own else f"process {pid}"
