# Reads a host and changes nothing on it. Sent over SSH with a prelude of values; needs bash,
# coreutils, iproute2 and systemd. Output: sections, each begun by a line "$mark NAME".

# Of another language the decimal point is a comma, and programs say other words.
export LC_ALL=C

begin() { printf '%s %s\n' "$mark" "$*"; }

# What takes long runs beside the rest: `start NAME COMMAND…`, later `collect NAME`.
start() {
  local descriptor
  exec {descriptor}< <("${@:2}" 2>&1 </dev/null)
  printf -v "descriptor_$1" %s "$descriptor"
}
collect() {
  local name=descriptor_$1
  cat <&"${!name}"
}

have() { command -v "$1" >/dev/null 2>&1; }

# `within SECONDS FUNCTION…`: a function with a limit. Hung mounts leave processes that only
# SIGKILL ends. The exit code is the last line, so that "too long" (124, 137) can be told apart.
within() {
  local limit=$1 code=0
  shift
  timeout -k 1 "$limit" bash -c "$values; $(declare -f begin have "$1"); $(printf '%q ' "$@")" || code=$?
  if [ "$code" -ne 0 ]; then printf '%s= %s\n' "$mark" "$code"; fi
}

# daemon.json may hold a proxy's password.
show_file() {
  if [ -f "$1" ]; then
    begin file "$1"
    sed -E 's#//[^/@" ]+@#//***@#g' "$1"
  fi
}
