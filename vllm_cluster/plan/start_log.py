"""Why a start of vLLM failed, out of its log."""

from __future__ import annotations

import re

from vllm_cluster.plan.signs import NOISE, SIGNS, WAITED

# What names a cause in a log, the last of them; frames of a traceback do not.
_ERROR = re.compile(r"\b\w*(?:Error|Exception)\b:|\berror:|^refused: |no completion|gave up")
_AFTER = {"an engine process died", "an error"}
# "Engine core initialization failed. See root cause above", and what else only follows.
_FOLLOWS = re.compile("|".join(s.pattern for s in SIGNS if s.meaning == "an engine process died"))
_DEEP = sorted((s for s in SIGNS if s.meaning not in _AFTER), key=lambda sign: sign.rank)
# Lines of source in a traceback, news and warnings, what was waited for and had come.
_TELLS_NOTHING = re.compile(
    rf"(?:^|\) )\s*raise |\b(?:DEBUG|INFO|WARNING) \d\d-\d\d |{NOISE}|{WAITED}"
)
_LOGGER = re.compile(r"^(?:\([^)]*\)\s*)*(?:[A-Z]+ \d\d-\d\d [\d:]+ \[\S+:\d+\]\s*)?")


def why(log: str) -> str:
    """The deepest known sign, else the last error that does not only follow from another; empty
    where there is none. Without what the logger put before it, at most 300 characters."""
    lines = [line for line in log.splitlines() if not _TELLS_NOTHING.search(line)]
    errors = [line for line in lines if _ERROR.search(line)]
    roots = [line for line in errors if not _FOLLOWS.search(line)]
    deep = (line for sign in _DEEP for line in lines if re.search(sign.pattern, line))
    told = next(deep, (roots or errors or [""])[-1])
    return _LOGGER.sub("", told).strip()[:300]
