"""What `down` must know of a host: the record, and what is there now. One round trip."""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm_cluster.facts.firewall import POLICY
from vllm_cluster.operations.files import MARK
from vllm_cluster.plan import owned, paths, ufw
from vllm_cluster.plan.containers import CONFIG_LABEL
from vllm_cluster.plan.owned import Record
from vllm_cluster.removal import images, weights

_SCRIPT = (
    weights.SHELL
    + images.SHELL
    + r"""
T=$(printf '\t') J=$O/journal
say() { printf '%s\t%s\t%s\n' "$1" "$2" "${3:-}"; }
grep -lsF "$mark" /etc/systemd/system/* | while read -r p; do say marked "$p"; done
# A last line without its end is half a line; more fields than a line has say so.
journal() { [ ! -f $J ] || { cat $J; printf '\t\t\t\n'; }; }
journal | sed "s/^/journal$T/"
named() {
  journal | awk -F"$T" -v kinds=" $1 " 'NF == 3 && index(kinds, " " $1 " ") { print $2 }' | sort -u
}
sum() { sha256sum <"$1" | cut -c1-64; }
[ -f "$members" ] && say members - "$(base64 -w0 "$members")"
named "file merge" | while IFS= read -r p; do
  if [ -L "$p" ]; then say now "$p" link
  elif [ -d "$p" ]; then say now "$p" directory
  elif [ -f "$p" ]; then say now "$p" "$(sum "$p")"
  else say now "$p" absent; fi
done
named merge | while IFS= read -r p; do [ -f "$p" ] && say content "$p" "$(base64 -w0 "$p")"; done
for f in $O/*.before; do [ -f "$f" ] && say before "${f##*/}" "$(sum "$f")"; done
for f in $O/*.old $O/*.new; do [ -f "$f" ] && say copy "${f##*/}" "$(base64 -w0 "$f")"; done
models=$(named weights | sed 's:.*/::' | grep -v '^[.]')
journal | awk -F"$T" 'NF == 3 && $1 == "weights" && !seen[$2]++ { print $2 FS $3 }' |
while IFS="$T" read -r p v; do
  [ -d "$p" ] || continue
  set -- '*'
  [ "$v" != there ] || set -- $models
  say weights "$p" "$(ours_in "$p" "$@" | du -cB1 --files0-from=- | tail -n1 | cut -f1)"
  t=$(theirs_in "$p" "$@")
  [ -z "$t" ] || say theirs "$p" "$t"
done
named package | xargs -r dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null |
  sed -n "s/^installed /installed$T/p"
for t in vllm_cluster vllm_cluster_gcs vllm_cluster_door; do
  if nft list table inet $t >/dev/null 2>&1; then say table inet; break; fi
done
# Our rules stay in its file while ufw is off; comments are in hexadecimal there.
grep -qsF "comment=$ufw_mark" /etc/ufw/user.rules && ufw show added |
  while read -r l; do say ufw "$l"; done
[ -e "$policy" ] && say firewalld "$policy" "$(firewall-cmd --state 2>/dev/null)"
if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
  say docker root "$(docker info --format '{{.DockerRootDir}}')"
  docker ps -a --format "{{.Names}}$T{{.Label \"$label\"}}" | while IFS="$T" read -r n l; do
    [ -n "$l" ] && say ours "$n" || say foreign "container $n"
  done
  ours=" $(named image | xargs -r docker image inspect -f '{{.Id}}' 2>/dev/null | tr '\n' ' ') "
  docker image ls --no-trunc --format '{{.ID}} {{.Repository}}:{{.Tag}}' | while read -r i n; do
    case $n in "$kept":*) continue ;; esac
    case $ours in *" $i "*) ;; *) say foreign "image $n" ;; esac
  done
  kept_names | while read -r n; do
    i=$(grep -o '"image": "[^"]*"' "$generations/${n##*:}/generation.json" 2>/dev/null | head -n1)
    i=${i#'"image": "'} i=${i%'"'}
    if [ -n "$i" ] && named image | grep -qxF -e "$i"; then say kept "$n" ours; continue; fi
    say kept "$n" theirs
    [ -n "$(other_names "$n")" ] || say foreign "image $n"
  done
  docker volume ls -q | while read -r v; do say foreign "volume $v"; done
  docker network ls --filter type=custom --format '{{.Name}}' | while read -r n; do
    say foreign "network $n"
  done
fi
say end end
"""
)


@dataclass(frozen=True)
class Found:
    """A host as `down` finds it.

    `now` maps a recorded path to the SHA-256 of what is there, or to `absent`, `link`, `directory`.
    `before` maps a copy of the record to its SHA-256.
    `contents` and `copies` are texts: of merged files, and of what the record kept of them.
    `marked`: units that carry our mark, whatever the record says. `foreign`: what of Docker's is
    not ours. `weights_bytes`: what of ours lies at a recorded place of weights; `weights_theirs`:
    the names of what is not ours there. `kept_images`: the name of a kept generation's image ->
    `ours` where we brought that image, else `theirs`.
    """

    record: Record
    now: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    weights_bytes: dict[str, int] = field(default_factory=dict)
    weights_theirs: dict[str, str] = field(default_factory=dict)
    installed: tuple[str, ...] = ()
    table: bool = False
    ufw: tuple[str, ...] = ()
    firewalld: bool = False
    docker: bool = False
    docker_root: str = ""
    containers: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    kept_images: dict[str, str] = field(default_factory=dict)
    marked: tuple[str, ...] = ()
    members: str = ""

    @property
    def nothing(self) -> bool:
        """Whether neither a record nor a unit of ours is there."""
        return not self.record.lines and not self.marked


def script() -> str:
    """Bash that prints all of it, and changes nothing."""
    values = {
        "O": paths.OWNED,
        "mark": MARK,
        "policy": POLICY,
        "label": CONFIG_LABEL,
        "kept": paths.KEPT_IMAGES,
        "generations": paths.GENERATIONS,
        "members": paths.MEMBERS,
        "ufw_mark": ufw.MARK.encode().hex(),
    }
    return "".join(f"{k}={shlex.quote(v)}\n" for k, v in values.items()) + _SCRIPT


def parse(output: Iterable[str]) -> Found:
    """What the script printed. Raises ValueError where it did not come to its end."""
    rows: dict[str, dict[str, str]] = {}
    journal = []
    for line in output:
        kind, _, rest = line.partition("\t")
        if kind == "journal":
            journal.append(rest)
        else:
            name, _, value = rest.partition("\t")
            rows.setdefault(kind, {})[name] = value
    if "end" not in rows:
        raise ValueError("the host's answer is not whole")
    return Found(
        record=owned.parse(journal),
        now=rows.get("now", {}),
        contents={path: _text(value) for path, value in rows.get("content", {}).items()},
        copies={name: _text(value) for name, value in rows.get("copy", {}).items()},
        before=rows.get("before", {}),
        weights_bytes={p: int(v) for p, v in rows.get("weights", {}).items() if v.isdigit()},
        weights_theirs=rows.get("theirs", {}),
        installed=tuple(rows.get("installed", ())),
        table="table" in rows,
        ufw=tuple(rows.get("ufw", ())),
        firewalld="firewalld" in rows,
        docker="docker" in rows,
        docker_root=rows.get("docker", {}).get("root", ""),
        containers=tuple(rows.get("ours", ())),
        foreign=tuple(rows.get("foreign", ())),
        kept_images=rows.get("kept", {}),
        marked=tuple(rows.get("marked", ())),
        members=_text(rows.get("members", {}).get("-", "")),
    )


def _text(value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode("utf-8", "surrogateescape")
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
