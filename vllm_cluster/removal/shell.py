"""The commands of a removal, bash with `set -e`. Each may run again after it was cut off."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from vllm_cluster.facts.alignment import VERSIONS
from vllm_cluster.operations import daemon, owned
from vllm_cluster.operations.locked_versions import PINS
from vllm_cluster.operations.packages import SHELL as APT
from vllm_cluster.plan import hardware, paths

STOP_DOCKER = "systemctl --quiet stop docker.socket docker.service"
RESTART_DOCKER = "systemctl daemon-reload; systemctl restart docker.service"
NO_TABLE = """
nft delete table inet vllm_cluster 2>/dev/null || true
nft delete table inet vllm_cluster_door 2>/dev/null || true
nft delete table inet vllm_cluster_gcs 2>/dev/null || true
"""
# What we make beneath paths.STATE beside weights, and what a write that was cut off leaves of it.
STATE = (
    paths.RAY, paths.COMPILE_CACHE, paths.GENERATIONS, paths.WEIGHTS_NOTES,
    paths.WEIGHTS_VERIFIED, f"{paths.WEIGHTS_VERIFIED}.*.new", VERSIONS, f"{VERSIONS}.new",
    daemon.BEFORE, daemon.WRITTEN,
)  # fmt: skip
_CHAINS = r"""
command -v nft >/dev/null || exit 0
ours() { nft -a list table "$1" "$2" 2>/dev/null; }
for family in ip ip6; do for table in raw mangle filter nat; do
  ours $family $table >/dev/null || continue
  # Rules that lead to Docker's chains, then its chains, then tables that it made for itself.
  ours $family $table |
    awk '$1 == "chain" { c = $2 } /docker0|(jump|goto) DOCKER/ { print c, $NF }' |
    while read -r chain handle; do nft delete rule $family $table "$chain" handle "$handle"; done
  chains=$(ours $family $table | awk '$1 == "chain" && $2 ~ /^DOCKER/ { print $2 }')
  for chain in $chains; do
    if [ "$chain" = DOCKER-USER ] && ours $family $table | sed -n '/chain DOCKER-USER/,/}/p' |
      grep -vE 'chain|}|counter packets [0-9]+ bytes [0-9]+ return' | grep -q .; then
      echo "$family $table DOCKER-USER has rules of yours"; continue
    fi
    nft flush chain $family $table "$chain"
  done
  for chain in $chains; do nft delete chain $family $table "$chain" 2>/dev/null || true; done
  case " $tables " in *" $family:$table "*) continue ;; esac
  if ! ours $family $table | grep -vE 'chain |type .* hook|^table |^}|^	}' | grep -q .; then
    nft delete table $family $table
  fi
done; done
"""


def no_unit(name: str) -> str:
    """Stopped, not started at boot, and not remembered as failed; of a template every instance."""
    if "@." in name:
        base = name.partition("@.")[0]
        return (
            f"systemctl --quiet stop {shlex.quote(name.replace('@.', '@*.'))} && "
            f'systemctl --quiet stop "system-$(systemd-escape {base}).slice"'
        )
    # When a timer ran last is systemd's to know, and of no use without it.
    stamp = f"; rm -f /var/lib/systemd/timers/stamp-{name}" if name.endswith(".timer") else ""
    return (
        f"systemctl --quiet disable --now {name} && "
        f"{{ systemctl reset-failed {name} 2>/dev/null || true; }}{stamp}"
    )


def no_container(name: str) -> str:
    """Stop what still runs in a container of ours; none is there afterwards."""
    return (
        f"docker stop {shlex.quote(name)} >/dev/null 2>&1 || true; "
        f"docker rm --force {shlex.quote(name)} >/dev/null 2>&1 || true"
    )


def no_state(spared: Iterable[str]) -> str:
    """What we made under paths.STATE but what leads to `spared`; a file system there stays."""
    cases = "".join(f'case {shlex.quote(s)}/ in "$e"/*) continue ;; esac; ' for s in spared)
    return (
        f'left=; for e in {paths.STATE}/* {paths.STATE}/.[!.]*; do [ -e "$e" ] || continue; {cases}'
        f'case $e in {"|".join(STATE)}) ;; *) left="$left ${{e##*/}}"; continue ;; esac\n'
        'if mountpoint -q "$e"; then left="$left ${e##*/} (a file system)"; continue; fi\n'
        'rm -rf --one-file-system "$e"; done\n'
        '[ -z "$left" ] || { echo "not ours, and stays:$left"; exit 9; }'
    )


def unit_as_before(name: str, enabled: str, active: str) -> str:
    """A unit of others that we enabled or started."""
    lines = [f"systemctl cat {name} >/dev/null 2>&1 || exit 0"]
    if enabled == "disabled":
        lines.append(f"systemctl --quiet disable {name}")
    if active in {"inactive", "failed"}:
        lines.append(f"systemctl stop {name}")
    return "; ".join(lines)


def no_mount(name: str) -> str:
    """Unmount; the mount point and its unit go. What is on the file system stays there."""
    unit, path = shlex.quote(name), shlex.quote(f"{paths.UNITS}/{name}")
    return (
        f"where=$(systemctl show -P Where {unit}); systemctl --quiet disable --now {unit}; "
        f'if mountpoint -q "$where"; then fuser -vm "$where" 2>&1 || true; '
        f'echo "$where is still in use"; exit 1; fi; rm -f {path}'
    )


def sysctl_as_before(name: str, brought: str, before: str) -> str:
    """The old value, where ours is still there."""
    path = f"/proc/sys/{name.replace('.', '/')}"
    return (
        f"[ -e {path} ] || exit 0; have=$(tr -s '\\t ' '  ' <{path}); "
        f'[ "$have" != {shlex.quote(before)} ] || exit 0; '
        f'[ "$have" = {shlex.quote(brought)} ] || {{ echo "is $have, not ours"; exit 9; }}; '
        f"printf '%s\\n' {shlex.quote(before)} >{path}"
    )


def docker_leftovers(engine: Mapping[str, str], root: str) -> str:
    """What dockerd made beside its package: bridge, chains, tables, its data."""
    full = engine.get("full", "").split()
    existed = engine.get("directories", "").rstrip("-").split()
    modes = dict(word.split("=") for word in engine.get("modes", "").split() if "=" in word)
    lines = [
        f"{STOP_DOCKER} containerd.service 2>/dev/null || true",
        f"tables={shlex.quote(engine.get('tables', '').rstrip('-').strip())}",
        f"( {_CHAINS} )",
        "ip link delete docker0 2>/dev/null || true",
        "umount /run/docker/netns/* 2>/dev/null || true",
        "rm -rf /run/docker /run/docker.sock /run/containerd /etc/docker/key.json",
    ]
    if engine.get("forward") == "0":
        lines.append("echo 0 >/proc/sys/net/ipv4/ip_forward")
    for path in dict.fromkeys(
        ["/var/lib/docker", "/var/lib/containerd", *([root] if root else [])]
    ):
        if path in full:
            continue
        where = shlex.quote(path)
        lines.append(f"[ ! -d {where} ] || find {where} -mindepth 1 -delete")
        if path not in existed:
            lines.append(f"[ ! -d {where} ] || rmdir {where} 2>/dev/null || true")
        elif path in modes:
            lines.append(f"[ ! -d {where} ] || chmod {modes[path]} {where}")
    for path in ("/etc/cni/net.d", "/etc/cni"):  # containerd makes them; what is in them is not its
        if path not in existed:
            lines.append(f"rmdir {path} 2>/dev/null || true")
    return "\n".join(lines)


def no_hold(package: str) -> str:
    """apt may bring another version again."""
    return f"{APT}patiently apt-mark unhold {shlex.quote(package)}"


def no_packages(packages: Mapping[str, str]) -> str:
    """Take away those of `packages` (name -> purge or remove) that nothing else needs.

    One whose configuration somebody changed is removed and not purged.
    """
    names = " ".join(shlex.quote(name) for name in packages)
    only = " ".join(name for name, how in packages.items() if how == "remove")
    return f"""{APT}{owned.PACKAGES}
own_cut
settle
names="{names}" only=" {only} " kept=
others() {{ # what apt would take away beside ours
  LC_ALL=C apt-get -s -qq remove "$@" | awk '/^Remv/ {{ print $2 }}' |
    grep -vxF "$(printf '%s\\n' $names)" || true
}}
if [ -n "$(others $names)" ]; then
  free=
  for one in $names; do
    needs=$(others "$one" | tr '\\n' ' ')
    if [ -n "$needs" ]; then kept="$kept $one (for $needs)"; else free="$free $one"; fi
  done
  names=$free
fi
changed() {{
  dpkg-query -W -f '${{Conffiles}}\\n' "$1" | while read -r file sum state; do
    if [ -n "$file" ] && [ -z "$state" ] && [ -f "$file" ] &&
      [ "$(md5sum <"$file" | cut -c1-32)" != "$sum" ]; then echo "$file"; fi
  done
}}
purge= remove=
for one in $names; do
  files=$(changed "$one" | tr '\\n' ' ')
  if [ -n "$files" ]; then remove="$remove $one" kept="$kept $files(of $one)"
  else case $only in *" $one "*) remove="$remove $one" ;; *) purge="$purge $one" ;; esac; fi
done
mark="-o APT::Get::AutomaticRemove=false --allow-change-held-packages"
[ -z "$remove" ] || apt remove $mark $remove
[ -z "$purge" ] || apt purge $mark $purge
systemctl daemon-reload
[ -z "$kept" ] || {{ echo "kept:$kept"; exit 9; }}
"""


def no_accounts(users: list[str], groups: list[str], packages: list[str]) -> str:
    """Users and groups that came with `packages`, once all of these are gone."""
    names = " ".join(shlex.quote(name) for name in packages)
    return f"""
left=$(dpkg-query -W -f '${{db:Status-Status}} ${{Package}}\\n' {names} 2>/dev/null |
  sed -n 's/^installed //p' | tr '\\n' ' ')
[ -z "$left" ] || {{ echo "stay with $left"; exit 9; }}
for name in {" ".join(users)}; do
  getent passwd "$name" >/dev/null || continue
  [ -z "$(ps -o pid= -u "$name")" ] || {{ echo "$name has processes"; exit 9; }}
  userdel "$name" 2>/dev/null
done
for name in {" ".join(groups)}; do
  getent group "$name" >/dev/null || continue
  [ -z "$(getent group "$name" | cut -d: -f4)" ] || {{ echo "$name has members"; exit 9; }}
  groupdel "$name"
done
"""


_LEFT = """
[ ${#left[@]} -gt 0 ] || exit 0
printf -v names ', %s' "${left[@]:0:4}"
more=$((${#left[@]} - 4))
if [ $more -gt 0 ]; then names="$names and $more more"; fi
echo "not ours alone, and not empty: ${names#, }"
exit 9"""


def no_directories(made: list[str], spared: Iterable[str]) -> str:
    """Ours where they are empty, deepest first, and what we keep in paths.CONFIG by its names."""
    own = f"{paths.SECRETS} {paths.MEMBERS} {paths.FIREWALL} {paths.FIREWALL}.new {paths.AGENT}"
    run = f"{paths.UNITS_STATE} {hardware.RDMA_ENVIRONMENT} {PINS}"
    lines = [f"rm -rf {own} {paths.FIREWALL_STATE} {run}", "left=()"]
    # What holds something that stays is not worth a word.
    stay = [paths.OWNED, *spared]
    for path in made:
        if path.startswith(paths.OWNED):
            continue
        where = shlex.quote(path)
        quiet = any(f"{each}/".startswith(f"{path}/") for each in stay)
        # One that holds another that stays is not worth a word either.
        once = f'case " ${{left[*]}}/" in *" "{where}/*) ;; *) left+=({where}) ;; esac'
        told = ":" if quiet else once
        lines.append(f"if [ -d {where} ] && ! rmdir {where} 2>/dev/null; then {told}; fi")
    return "\n".join([*lines, _LEFT])


def record(remains: Iterable[str]) -> str:
    """The record itself goes, but for what a later `down` may be asked for."""
    kinds = {
        "packages": ["package", "user", "group", "upgraded", "gone", "engine"],
        "weights": ["weights", "directory"],
    }
    stay = [kind for name in remains for kind in kinds[name]]
    where = paths.OWNED
    if not stay:
        return f"rm -rf {where}; rmdir {paths.CONFIG} 2>/dev/null || true"
    pattern = "|".join(stay)
    return (
        f"{owned.SHELL}own_ends\n"
        f"grep -E '^({pattern})\t' {where}/journal >{where}/rest || [ $? -eq 1 ] || exit 1\n"
        f"sync {where}/rest; "
        f"find {where} -mindepth 1 -not -name rest -delete; mv {where}/rest {where}/journal"
    )
