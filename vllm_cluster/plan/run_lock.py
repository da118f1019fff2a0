"""The lock that keeps two runs apart: who holds it, and the program that holds it on a host.

The lock is a flock(2) on a file in /run of every host, held by a small shell at the other end of
an SSH session. So it ends with the session, a run that was killed included, and with the host.
A connection that died without a word (a closed laptop) is known by its silence: the shell wants
a line every few seconds. A file with a name in it would outlive all three.

The file outlives a run. `down` alone removes it, while it holds it: whoever waited meanwhile has
locked a file without a name, and opens the one that is there.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime

LOCK = "/run/vllm-cluster/lock"
BEAT_S = 10
# What a run may stay silent: six beats, so that a slow link or a busy machine loses no lock.
EXPIRY_S = 60
# A run that has just ended may still be on its way out.
_PATIENCE_S = 2
_DIED = (
    "The lock of a run that died is free at once, that of a machine that fell silent after "
    f"{EXPIRY_S} s"
)
WAIT = (
    "Wait until it has ended, or end it with Ctrl-C where it runs: units that it started go on "
    f"starting until `vllm-cluster stop` stops them, and a switch goes back by itself. {_DIED}"
)
_MARK = "vllm-cluster-lock"
# Said to the holder: end, and leave no file.
GONE = "gone"
_DIRECTORY = LOCK.rpartition("/")[0]

_HOLDER = f"""
umask 022
for _ in 1 2 3; do
  mkdir -p {_DIRECTORY} && exec 9<>{LOCK} || continue
  if ! flock -w {_PATIENCE_S} 9; then
    echo "{_MARK} busy $(date +%s) $(cat {LOCK})"
    exit 0
  fi
  [ {LOCK} -ef /dev/fd/9 ] && break
done
[ {LOCK} -ef /dev/fd/9 ] || exit 1
echo "$(date +%s) $1" >{LOCK}
echo "{_MARK} held"
while read -r -t {EXPIRY_S} word; do
  if [ "$word" = {GONE} ]; then
    rm -f {LOCK}
    rmdir {_DIRECTORY} 2>/dev/null
    exit 0
  fi
  echo
done
: >{LOCK}
"""


@dataclass(frozen=True)
class Bearer:
    """Who runs what: `run` is its own, so that a run knows the lock of the run that started it."""

    run: str
    operator: str
    machine: str
    what: str


@dataclass(frozen=True)
class Held:
    """The lock is ours."""


@dataclass(frozen=True)
class Busy:
    """The lock is another's, for `age_s` by the host's clock, since `since_s` of the epoch."""

    bearer: Bearer | None
    since_s: int
    age_s: int

    def text(self, host: str = "") -> str:
        """One sentence for the person who comes second, who may ask where it is held."""
        if self.bearer is None:
            where = f"{' on ' * bool(host)}{host}"
            return f"another run{where} {'is under way' if self.since_s else 'is just beginning'}"
        began = datetime.fromtimestamp(self.since_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        who = f"{self.bearer.operator} on {self.bearer.machine}"
        ago = f"{span(self.age_s)} ago{'; on ' * bool(host)}{host}"
        return f"{who} runs {self.bearer.what} since {began} ({ago})"


def holder(bearer: Bearer) -> str:
    """The command line that takes the lock on a host, as root, and holds it while it is fed."""
    return shlex.join(["bash", "-c", _HOLDER, _MARK, json.dumps(asdict(bearer))])


def answer(line: str) -> Held | Busy | None:
    """What the holder said in `line`; None where the line is not its own."""
    mark, _, rest = line.strip().partition(" ")
    word, _, rest = rest.partition(" ")
    if mark != _MARK:
        return None
    if word == "held":
        return Held()
    now, _, rest = rest.partition(" ")
    return busy(rest, int(now))


def busy(text: str, now_s: int) -> Busy:
    """What the lock's file says of the one that holds it, at `now_s` by the host's clock.

    Another version of this tool may say more than this one knows; a line that was cut says less.
    """
    since, _, who = text.strip().partition(" ")
    if not since.isdecimal():
        return Busy(None, 0, 0)
    try:
        said = json.loads(who)
        bearer = Bearer(**{each.name: str(said[each.name]) for each in fields(Bearer)})
    except (ValueError, TypeError, KeyError):
        bearer = None
    return Busy(bearer, int(since), max(0, now_s - int(since)))


def refusal(found: dict[str, Busy]) -> str:
    """Why a run ends here; `found` by host."""
    host, first = next(iter(found.items()))
    # A host that finishes a switch by itself runs nowhere else.
    alone = first.bearer is not None and not first.bearer.run
    wait = f"Wait until it has ended. {_DIED}" if alone else WAIT
    return f"{first.text(host)}; nothing was changed. {wait}"


def span(seconds: int) -> str:
    """`40 s`, `12 min`, `3 h 5 min`."""
    if seconds < 60:
        return f"{seconds} s"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
