"""Packages of a lock in the locked version, or none of an installation."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra.api.command import StringCommand

# Preferences for one call of apt: a file below /etc would outlive the lock.
PINS = "/run/vllm-cluster-locked.pref"
OPTION = f"-o Dir::Etc::Preferences={PINS}"

# apt passes over a pin that no source can serve (apt_preferences(5)), so what it would install is
# compared. Versions come by standard input as NAME VERSION lines.
_SCRIPT = r"""
wanted=$(cat)
{
  cat /etc/apt/preferences 2>/dev/null
  printf '%s\n' "$wanted" | while read -r name version; do
    printf '\nPackage: %s\nPin: version %s\nPin-Priority: 1001\n' "$name" "$version"
  done
} > @PINS@
would=$(apt-get -s -qq -y @INSTALL@ 2>/dev/null |
  sed -n 's/^Inst \([^ ]*\) \(\[[^]]*\] \)\{0,1\}(\([^ ]*\) .*/\1 \3/p')
status=0
while read -r name version; do
  found=$(printf '%s\n' "$would" | sed -n "s/^$name //p")
  if [ -n "$found" ] && [ "$found" != "$version" ]; then
    echo "refused: $name is locked at $version, and the sources of this host have $found" >&2
    status=1
  fi
done <<END
$wanted
END
[ $status = 0 ] || echo "Name a mirror that keeps it, or lock anew (vllm-cluster lock)." >&2
exit $status
"""


def pinned(locked: Mapping[str, str], install: str) -> StringCommand:
    """Let apt take locked versions where OPTION is given, and fail where it could not.

    `install` is what apt-get will be called with. Without a fitting lock nothing is installed.
    """
    lines = "".join(f"{name} {version}\n" for name, version in sorted(locked.items()))
    script = _SCRIPT.replace("@PINS@", PINS).replace("@INSTALL@", install)
    return StringCommand(script, _stdin=lines)
