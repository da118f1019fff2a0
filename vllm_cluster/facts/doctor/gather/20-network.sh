cards() {
  begin links
  # Not from /sys/class/net, which in a container shows another network namespace's cards.
  ip -o link show
  local card
  for card in /sys/class/net/*; do
    echo "speed ${card##*/} $(cat "$card/speed" 2>/dev/null)"
  done
  begin addresses
  ip -o -4 address show
  begin routes
  local peer name address _
  for peer in "${peers[@]}"; do
    read -r name address _ <<<"$peer"
    echo "$name $(ip -o -4 route get "$address" 2>&1 | head -n 1)"
  done
  begin infiniband
  local port
  for port in /sys/class/infiniband/*/ports/*; do
    [ -e "$port/state" ] || continue
    echo "port ${port#/sys/class/infiniband/} state=$(<"$port/state") physical=$(<"$port/phys_state") rate=$(<"$port/rate") layer=$(<"$port/link_layer")"
    local counter
    for counter in symbol_error link_error_recovery link_downed port_rcv_errors; do
      [ ! -e "$port/counters/$counter" ] || echo "counter ${port#/sys/class/infiniband/} $counter=$(<"$port/counters/$counter")"
    done
    local gid
    for gid in "$port"/gid_attrs/types/*; do
      local kind; kind=$(cat "$gid" 2>/dev/null) || continue
      echo "gid ${port#/sys/class/infiniband/} index=${gid##*/} type=${kind// /_} net=$(cat "$port/gid_attrs/ndevs/${gid##*/}" 2>/dev/null) gid=$(cat "$port/gids/${gid##*/}" 2>/dev/null)"
    done
  done
  if have ibstat; then begin ibstat; timeout 5 ibstat 2>&1; fi
}

names() {
  local peer name _
  begin names
  for peer in "$self" "${peers[@]}"; do
    read -r name _ <<<"$peer"
    echo "$name $(getent ahostsv4 "$name" | cut -d' ' -f1 | sort -u | tr '\n' ' ')"
  done
  begin cloud-init
  grep -rhs '^[[:space:]]*manage_etc_hosts' /etc/cloud/cloud.cfg /etc/cloud/cloud.cfg.d
}

# NAME ADDRESS PORT: "open", or the words of the failure; "dropped" when nothing comes back.
dial() {
  local words code=0
  words=$(timeout 1.5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$2" "$3" 2>&1) || code=$?
  case $code in
    0) words=open ;;
    124) words=dropped ;;
    *) words=${words##*: } ;;
  esac
  echo "dial $1 $3 $words"
}

# Full frames with "do not fragment"; small ones only where those fail.
reach() {
  local card mtu words
  card=$(ip -o -4 route get "$2" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p')
  mtu=$(ip -o link show "${card:-lo}" 2>/dev/null | sed -n 's/.* mtu \([0-9]*\).*/\1/p')
  mtu=${mtu:-1500}
  # At most 9000: loopback's own 65536 says nothing of a path.
  [ "$mtu" -le 9216 ] || mtu=9000
  if words=$(ping -n -c 1 -W 1 -M do -s $((mtu - 28)) "$2" 2>&1); then
    echo "ping $1 full $mtu $(sed -n 's/.*time=\([0-9.]*\).*/\1/p' <<<"$words" | head -n 1)"
  elif words=$(ping -n -c 1 -W 1 "$2" 2>&1); then
    echo "ping $1 small $mtu $(sed -n 's/.*time=\([0-9.]*\).*/\1/p' <<<"$words" | head -n 1)"
  elif have ping; then
    echo "ping $1 none $mtu $(tr '\n' ' ' <<<"$words")"
  fi
}

all_peers() {
  local peer name address ports port
  begin peers
  for peer in "${peers[@]}"; do
    read -r name address ports <<<"$peer"
    reach "$name" "$address" &
    for port in $ports; do dial "$name" "$address" "$port" & done
  done
  wait
}

planned() {
  local range
  for range in "${planned_ports[@]}"; do
    [ "$1" -lt "${range%-*}" ] || [ "$1" -gt "${range#*-}" ] || return 0
  done
  return 1
}

firewall() {
  begin listeners
  local line port pid
  while IFS= read -r line; do
    echo "$line"
    [[ $line =~ :([0-9]+)\ +[^\ ]+\ .*pid=([0-9]+) ]] || continue
    port=${BASH_REMATCH[1]} pid=${BASH_REMATCH[2]}
    # Whose it is: the PID namespace tells our containers, the control group a unit.
    if planned "$port"; then
      echo "owner $port $pid $(readlink "/proc/$pid/ns/pid") $(tail -n 1 "/proc/$pid/cgroup" 2>/dev/null) $(tr '\0' ' ' <"/proc/$pid/comm")"
    fi
  done < <(ss -Hltnp)
  begin nft
  if have nft; then nft -a -n list ruleset 2>&1 | head -n 4000; else echo "no nft"; fi
}
