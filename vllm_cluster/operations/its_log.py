"""A start that, where it fails, shows the unit's own words of that start and of no other."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_cluster.plan import last_words

_HEAD = "this start in the log of "
_LAST, _FIRST = 40, 10
_ERROR = "[[:alpha:]](Error|Exception): "
_JOURNAL = "journalctl --quiet --no-pager --all --boot --output=cat"
_LIFE = '"_SYSTEMD_INVOCATION_ID=$was" + "INVOCATION_ID=$was"'


def or_its_log(verb: str, unit: str, options: str = "") -> str:
    """`systemctl verb unit`; where it fails, the unit's words, not systemd's advice to go and look.

    Its last lines, and before them the first that name an error.
    """
    command = " ".join(filter(None, ("systemctl", verb, options, unit)))
    return f"{_before(verb, unit)}; {command} || {{ {_failed(verb, unit)}; exit 1; }}"


def why(lines: Iterable[str]) -> str:
    """The unit and why it did not start, out of what the above has shown; empty where not known."""
    unit, log = "", list[str]()
    for line in lines:
        if line.startswith(_HEAD):
            unit, log = line.removeprefix(_HEAD), []
        else:
            log.append(line)
    reason = last_words.why(log) if unit else ""
    return f"{unit} {reason}" if reason else ""


def _before(verb: str, unit: str) -> str:
    """Note which life is there, where the journal ends, and whether a start joins that life."""
    state = f'"$(systemctl show -P ActiveState {unit})"'
    joins = f"; [ {state} != activating ] || joined=$was" if verb == "start" else ""
    return f"was=$(systemctl show -P InvocationID {unit}); joined=; mark=$({_cursor()}){joins}"


def _failed(verb: str, unit: str) -> str:
    """All that came since the start, or since the last word of a life that a restart ended.

    Not by the life that is there now: half a second after a failure it is the next.
    """
    last = f'[ -z "$was" ] || last=$({_cursor(_LIFE)}); mark=${{last:-$mark}}; '
    since = '${mark:+"--after-cursor=$mark"}'
    log = 'printf "%s\\n" "$log" |'
    return (
        f'if [ -n "$joined" ]; then log=$({_JOURNAL} {_LIFE}); '
        f"else {last * (verb == 'restart')}log=$({_JOURNAL} --unit={unit} {since}); fi; "
        f'[ -z "$log" ] || {{ echo "{_HEAD}{unit}:"; '
        f'{log} head -n -{_LAST} | grep -E "{_ERROR}" | head -n {_FIRST}; '
        f"{log} tail -n {_LAST}; }} >&2"
    )


def _cursor(of: str = "") -> str:
    return f"{_JOURNAL} --lines=1 --show-cursor {of} | sed -n 's/^-- cursor: //p'"
