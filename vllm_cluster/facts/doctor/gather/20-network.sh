cards() {
  begin links
  # Not from /sys/class/net, which in a container shows another network namespace's cards.
  ip -o link show
  local card speed
  for card in /sys/class/net/*; do
    speed=
    { read -r speed <"$card/speed"; } 2>/dev/null
    echo "speed ${card##*/} $speed"
  done
  begin addresses
  ip -o -4 address show
  begin routes
  local peer name address rest
  local -A name_of=()
  for peer in "${peers[@]}"; do
    read -r name address rest <<<"$peer"
    name_of[$address]=$name
  done
  while read -r address rest; do
    [ -z "${name_of[$address]:-}" ] || echo "${name_of[$address]} $address $rest"
  done < <(printf 'route get %s\n' "${!name_of[@]}" | ip -o -4 -force -batch - 2>/dev/null)
  infiniband
}

# One program a name and no more: on a host that is short of CPU every fork is felt.
names() {
  local peer name _
  begin names
  for peer in "$self" "${peers[@]}"; do
    read -r name _ <<<"$peer"
    # shellcheck disable=SC2046
    echo "$name" $(getent ahostsv4 "$name")
  done
  begin cloud-init
  grep -rhs '^[[:space:]]*manage_etc_hosts' /etc/cloud/cloud.cfg /etc/cloud/cloud.cfg.d || true
}

# All ports of all peers at once: "open", or the words of the failure. Those from which nothing
# comes back are ended from outside, so that "dropped" is what stands there before.
dial_all() {
  dial() {
    local words
    if words=$(exec 2>&1 3<>"/dev/tcp/$2/$3"); then words=open; fi
    echo "dial $1 $3 ${words##*: }"
  }
  local peer name address_ ports port
  for peer in "${peers[@]}"; do
    read -r name address_ ports <<<"$peer"
    for port in $ports; do echo "dial $name $port dropped"; done
  done
  for peer in "${peers[@]}"; do
    read -r name address_ ports <<<"$peer"
    for port in $ports; do dial "$name" "$address_" "$port" & done
  done
  wait
}

# MTU of the card that holds our own address. At most 9000: a larger one says nothing of a path.
own_mtu() {
  local card line
  line=$(ip -o -4 address show to "$address")
  read -r _ card _ <<<"$line"
  line=$(ip -o link show "${card:-lo}")
  [[ $line =~ mtu\ ([0-9]+) ]] && mtu=${BASH_REMATCH[1]} || mtu=1500
  [ "$mtu" -le 9216 ] || mtu=9000
}

# Full frames with "do not fragment"; small ones only where those fail.
reach() {
  local words kind=none
  if words=$(ping -n -c 1 -W 1 -M do -s $((mtu - 28)) "$2" 2>&1); then kind=full
  elif words=$(ping -n -c 1 -W 1 "$2" 2>&1); then
    kind=small
    # One lost packet proves nothing.
    if ping -n -q -c 3 -i 0.2 -W 1 -M do -s $((mtu - 28)) "$2" >/dev/null 2>&1; then kind=full; fi
  elif ! have ping; then return
  fi
  if [[ $words =~ time=([0-9.]+) ]]; then words=${BASH_REMATCH[1]}; fi
  echo "ping $1 $kind $mtu ${words//$'\n'/ }"
}

all_peers() {
  local peer name address_ mtu
  begin peers
  own_mtu
  within 3 dial_all &
  for peer in "${peers[@]}"; do
    read -r name address_ _ <<<"$peer"
    reach "$name" "$address_" &
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
  local line index pids=() ports=() spaces=()
  while IFS= read -r line; do
    echo "$line"
    [[ $line =~ :([0-9]+)\ +[^\ ]+\ .*pid=([0-9]+) ]] || continue
    if planned "${BASH_REMATCH[1]}"; then ports+=("${BASH_REMATCH[1]}") pids+=("${BASH_REMATCH[2]}"); fi
  done < <(ss -Hltnp)
  # Whose they are: the PID namespace tells our containers, the control group a unit.
  if [ ${#pids[@]} -gt 0 ]; then
    mapfile -t spaces < <(for index in "${pids[@]}"; do echo "/proc/$index/ns/pid"; done | xargs readlink)
  fi
  for index in "${!pids[@]}"; do
    local group="" comm=""
    while IFS= read -r group; do :; done <"/proc/${pids[index]}/cgroup"
    IFS= read -r comm <"/proc/${pids[index]}/comm"
    echo "owner ${ports[index]} ${pids[index]} ${spaces[index]:--} ${group:--} $comm"
  done 2>/dev/null
  begin nft
  if have nft; then nft -a -n list ruleset 2>&1 | head -n 4000; else echo "no nft"; fi
}

# Both are Python programs and slow, so they are asked only where their own files say they are on.
firewall_holder() {
  begin holder
  if grep -qs '^ENABLED=yes' /etc/ufw/ufw.conf && have ufw; then
    echo "ufw"
    timeout 8 ufw status verbose 2>&1 | grep -E '^(Status|Default):'
    timeout 8 ufw show added 2>&1 | grep '^ufw '
  elif have firewall-cmd && systemctl is-active --quiet firewalld.service; then
    echo "firewalld"
    timeout 8 firewall-cmd --policy=vllm-cluster --list-rich-rules 2>&1
  fi
}
