"""What of a weights' root is ours, told by its names: whatever else lies there is somebody's."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

# weights/agent/layout.py gives these names. A model's directory may be one that people had before
# us: of ours are its links into the store alone, which hold no bytes.
SHELL = r"""
hex=$(printf '[0-9a-f]%.0s' {1..16})
ours_in() { # PATH MODEL… : each ended by a zero byte; of the models' own directories those of MODEL
  local path=$1 end='@*' model; local -a which=()
  shift
  case ${path##*/} in
    .store | .pins) end=@$hex ;;
    .staging | .jobs) ;;
    *) find -H "$path" -mindepth 1 -maxdepth 1 -type l -lname '../.store/*' -print0; return ;;
  esac
  for model; do which+=(-o -name "$model$end"); done
  [ "${1:-}" != '*' ] || which+=(-o -name .hub -o -name '.link-*')
  find -H "$path" -mindepth 1 -maxdepth 1 \( -false "${which[@]}" \) -print0
}
theirs_in() { # PATH MODEL… : the first names of all else, on one line
  find -H "$1" -mindepth 1 -maxdepth 1 -printf '%f\n' | LC_ALL=C sort |
    grep -vxF -f <(ours_in "$@" | tr '\0' '\n' | sed 's:.*/::') | head -n5 | tr '\n\t' '  '
}
"""
THERE = "there"


def models_of(recorded: Iterable[str]) -> list[str]:
    """The directory names of the models among recorded places."""
    names = (path.rpartition("/")[2] for path in recorded)
    return list(dict.fromkeys(name for name in names if not name.startswith(".")))


def no_pins(path: str, units: Iterable[str]) -> str:
    """Beneath `path` nothing says any more that one of `units`, or a kept generation, uses a copy.

    Generations note theirs in templates/usr/local/lib/vllm-cluster/generation.
    """
    where, names = shlex.quote(path), " ".join(f"-o -name {shlex.quote(u)}" for u in units)
    return (
        f"[ -d {where} ] || exit 0\n"
        f"find -H {where} -mindepth 2 -maxdepth 2 -type f "
        f"\\( -name 'generation-*' {names} \\) -delete\n"
        f"find -H {where} -mindepth 1 -maxdepth 1 -type d -name '*@*' -empty -delete"
    )


def no_weights(path: str, before: str, models: Iterable[str]) -> str:
    """Ours at `path` goes, and `path` itself where it was not there before us and is empty.

    Where it was there, the copies of `models` alone are ours.
    """
    names = " ".join(shlex.quote(name) for name in (models if before == THERE else ["*"]))
    where = shlex.quote(path)
    own = "" if before == THERE else f"rmdir {where} 2>/dev/null || "
    return (
        f"{SHELL}[ -d {where} ] || exit 0\nours_in {where} {names} | xargs -0r rm -rf --\n"
        f"{own}{{ left=$(theirs_in {where} {names}); "
        f'[ -z "$left" ] || {{ echo "not ours, and stays: $left"; exit 9; }}; }}'
    )
