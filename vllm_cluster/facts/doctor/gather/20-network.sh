# Into the caller's `name_of`: an address of a peer -> its name.
names_of_peers() {
  local peer name address_
  for peer in "${peers[@]}"; do
    read -r name address_ _ <<<"$peer"
    name_of[$address_]=$name
  done
}

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
  local address rest
  local -A name_of=()
  names_of_peers
  while read -r address rest; do
    [ -z "${name_of[$address]:-}" ] || echo "${name_of[$address]} $address $rest"
  done < <(printf 'route get %s\n' "${!name_of[@]}" | ip -o -4 -force -batch - 2>/dev/null)
  infiniband
}

# One program for all names and one for those that it does not tell, which mostly are none: on a
# host that is short of CPU every fork is felt. The first line of an answer ends with the canonical
# name; whoever asked by an alias is asked alone.
names() {
  local peer name _ address_ canonical answer rest=()
  local -A found=() asked=()
  begin names
  for peer in "$self" "${peers[@]}"; do
    read -r name _ <<<"$peer"
    asked[$name]=yes
  done
  # It speaks when it has all answers, so one name that hangs silences it.
  answer=$(timeout 2 getent ahostsv4 "${!asked[@]}")
  if [ $? -eq 124 ]; then
    # shellcheck disable=SC2046
    for name in "${!asked[@]}"; do { echo "$name" $(getent ahostsv4 "$name"); } & done
    wait
    return
  fi
  while read -r address_ _ canonical; do
    [ -n "$address_" ] || break
    if [ -n "$canonical" ]; then name=$canonical; fi
    found[$name]+=" $address_"
  done <<<"$answer"
  for name in "${!asked[@]}"; do
    if [ -n "${found[$name]:-}" ]; then echo "$name${found[$name]}"; else rest+=("$name"); fi
  done
  # Without a name getent lists all that it knows.
  if [ ${#rest[@]} -eq 0 ]; then :
  elif [ -z "$(getent ahostsv4 "${rest[@]}")" ]; then printf '%s\n' "${rest[@]}"
  else
    # shellcheck disable=SC2046
    for name in "${rest[@]}"; do echo "$name" $(getent ahostsv4 "$name"); done
  fi
}

cloud_init() {
  begin cloud-init
  grep -rhs '^[[:space:]]*manage_etc_hosts' /etc/cloud/cloud.cfg /etc/cloud/cloud.cfg.d || true
}

# All ports of all peers at once: "open", or the words of the failure. Those from which nothing
# comes back are ended from outside, so that "dropped" is what stands there before.
dial_all() {
  local peer name address_ ports port
  for peer in "${peers[@]}"; do
    read -r name address_ ports <<<"$peer"
    for port in $ports; do echo "dial $name $port dropped"; done
  done
  for peer in "${peers[@]}"; do
    read -r name address_ ports <<<"$peer"
    for port in $ports; do
      # bash's own words of a failure name address and port: dialled() reads them.
      { exec 3<>"/dev/tcp/$address_/$port" && echo "dial $name $port open"; } 2>&1 &
    done
  done
  wait
}

# Lines of dial_all, with bash's words put as ours. One process for all of them.
dialled() {
  local line
  local -A name_of=()
  names_of_peers
  while IFS= read -r line; do
    case $line in
      dial\ * | "$mark"*) echo "$line" ;;
      */dev/tcp/*)
        [[ $line =~ /dev/tcp/([^/]+)/([0-9]+):\ (.*)$ ]] &&
          echo "dial ${name_of[${BASH_REMATCH[1]}]} ${BASH_REMATCH[2]} ${BASH_REMATCH[3]}" ;;
    esac
  done
}

# MTU of the card that holds our own address. At most 9000: a larger one says nothing of a path.
own_mtu() {
  local card line
  line=$(ip -o -4 address show to "$address")
  read -r _ card _ <<<"$line"
  # Without our address there is no card of ours, whose frames could be too large for the others.
  if [ -z "$card" ]; then mtu=1500; return; fi
  line=$(ip -o link show "$card")
  [[ $line =~ mtu\ ([0-9]+) ]] && mtu=${BASH_REMATCH[1]} || mtu=1500
  [ "$mtu" -le 9216 ] || mtu=9000
}

# Small frames, to a peer that full ones with "do not fragment" did not reach.
small() {
  local words kind=none
  if words=$(ping -n -c 1 -W 1 "$2" 2>&1); then
    kind=small
    # One lost packet proves nothing.
    if ping -n -q -c 3 -i 0.2 -W 1 -M do -s $((mtu - 28)) "$2" >/dev/null 2>&1; then kind=full; fi
  fi
  pinged "$1" "$kind" "$words"
}

pinged() {
  local words=$3
  if [[ $words =~ time=([0-9.]+) ]]; then words=${BASH_REMATCH[1]}; fi
  echo "ping $1 $2 $mtu ${words//$'\n'/ }"
}

all_peers() {
  local peer name address_ words descriptor mtu index=0 descriptors=()
  begin peers
  own_mtu
  within "$((3 + ${#peers[@]} / 16))" dial_all | dialled &
  if have ping; then
    for peer in "${peers[@]}"; do
      read -r _ address_ _ <<<"$peer"
      exec {descriptor}< <(exec ping -n -c 1 -W 1 -M do -s $((mtu - 28)) "$address_" 2>&1)
      descriptors+=("$descriptor")
    done
    for peer in "${peers[@]}"; do
      read -r name address_ _ <<<"$peer"
      IFS= read -r -d '' words <&"${descriptors[index++]}"
      case $words in
        *time=*) pinged "$name" full "$words" ;;
        *) small "$name" "$address_" & ;;
      esac
    done
  fi
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
  # Without what named sets hold: a blocklist of thousands of addresses is no rule.
  if have nft; then nft -a -n -t list ruleset 2>&1 | head -n 4000; else echo "no nft"; fi
  begin gcs
  gcs_table
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
