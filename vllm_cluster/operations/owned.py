"""What we change on a host is recorded there first, with what was there before: for `down`.

The record lies in paths.OWNED: `journal`, a line KIND, NAME, VALUE by tabs for each thing, and
copies of files that were there. A line is written and synced before the change that it is about,
in the same command, so that it costs no round trip and an interrupted run has recorded whatever
it did. What was there first is what counts: a line that is there is not written again.
"""

from __future__ import annotations

import shlex

from vllm_cluster.plan import paths

# `wrote` and `set` are what we brought last, so they repeat; `merge` is one write of a file that
# others write too, with copies of old and new.
SHELL = rf"""
O={paths.OWNED} T=$(printf '\t')
own_dir() {{ [ -d $O ] || ( umask 022; mkdir -p {paths.CONFIG} && mkdir -p -m 700 $O; ); }}
own() {{
  own_dir || return 1
  own_has "$1" "$2" || own_line "$@"
}}
# A line that a full disk cut off says nothing: it gets more fields than a line has.
own_has() {{
  {{ cat $O/journal 2>/dev/null; printf '\t\t\t\n'; }} | K=$1 N=$2 awk -F"$T" '
    NF == 3 && $1 == ENVIRON["K"] && $2 "" == ENVIRON["N"] "" && $3 != "" {{ has = 1 }}
    END {{ exit !has }}'
}}
own_ends() {{
  [ ! -s $O/journal ] || [ "$(tail -c1 $O/journal | wc -l)" -eq 1 ] ||
    printf '\t\t\t\n' >>$O/journal
}}
own_line() {{
  own_ends && printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>$O/journal && sync $O/journal
}}
own_dirs() {{
  d=${{1%/*}}
  while [ -n "$d" ] && [ ! -d "$d" ]; do own directory "$d" absent || return 1; d=${{d%/*}}; done
}}
own_copy() {{ cp -p "$1" "$2.tmp" && sync "$2.tmp" && mv -f "$2.tmp" "$2"; }}
"""
_FILE = r"""
own_file() {
  own_dirs "$1" && if own_has file "$1"; then :
  elif [ -e "$1" ] && ! grep -qsF "$2" "$1"; then
    k=$(printf %s "$1" | sha256sum | cut -c1-16).before
    own_dir && own_copy "$1" "$O/$k" && own file "$1" "$k"
  else own file "$1" absent; fi
}
own_mode() {
  if [ -d "$1" ]; then own mode "$1" "$(stat -c '%a %U:%G' "$1")"; else own_dirs "$1/."; fi
}
own_wrote() { own_line wrote "$1" "$(sha256sum <"$2" | cut -c1-64)"; }
own_merge() {
  own_dir && k=$(printf %s "$1" | sha256sum | cut -c1-16) && n=$(ls $O | grep -c "^$k.*new$")
  if [ -e "$1" ]; then own_copy "$1" "$O/$k.$n.old"; fi
  own_copy "$2" "$O/$k.$n.new" && own_line merge "$1" "$k.$n"
}
"""
# Users, groups, tables of the firewall: packages bring those too, and leave them behind.
_PACKAGES = r"""
own_listing() {
  dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' |
    sed -n 's/^\(installed\|unpacked\|half-[a-z]*\|triggers-[a-z]*\) /package /p
      s/^config-files /config /p'
  sed -n 's/^\([^:]*\):.*/user \1 -/p' /etc/passwd
  sed -n 's/^\([^:]*\):.*/group \1 -/p' /etc/group
}
own_before() { # the arguments of apt-get
  own_dir && own_cut && apt-get -s -qq -y "$@" 2>/dev/null |
    sed -n 's/^\(Inst\|Remv\) \([^ :]*\).*/\2/p' >$O/named &&
    own_listing >$O/pending.tmp && sync $O/named $O/pending.tmp && mv -f $O/pending.tmp $O/pending
}
own_after() { own_new | own_books; }
# After an installation that was cut off others may have installed too, and made accounts: of that
# only the packages are ours that apt said it would change.
own_cut() {
  [ ! -e $O/pending ] || own_new | while read -r kind name value; do
    case $kind in user | group) continue ;; esac
    if grep -qsxF -e "$name" $O/named; then echo "$kind $name $value"; fi
  done | own_books
}
own_books() {
  while read -r kind name value; do own $kind $name $value || return 1; done
  rm -f $O/pending $O/named $O/now.tmp
}
own_new() {
  own_listing >$O/now.tmp && awk '
    { key = $1 " " $2 }
    NR == FNR { had[key] = $3; next }
    { has[key] = 1 }
    $1 == "config" { next }
    !(key in had) { print $1, $2, ($1 == "package" && ("config " $2) in had) ? "remove" : "purge" }
    key in had && had[key] != $3 { print "upgraded", $2, had[key] }
    END {
      for (key in had) {
        split(key, part)
        if (part[1] == "package" && !(key in has)) print "gone", part[2], had[key]
      }
    }
  ' $O/pending $O/now.tmp
}
"""


def first(kind: str, name: str, value: str) -> str:
    """Shell that records what was there before, once. `name` and `value` hold no tab."""
    return f"{SHELL}own {kind} {shlex.quote(name)} {shlex.quote(value or '-')}"


def last(kind: str, name: str, value: str) -> str:
    """Shell functions and a call that record what we bring, each time."""
    return f"own_line {kind} {shlex.quote(name)} {shlex.quote(value or '-')}"


FILES = SHELL + _FILE
PACKAGES = SHELL + _PACKAGES
