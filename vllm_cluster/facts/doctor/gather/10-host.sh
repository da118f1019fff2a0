# NAME and the line of a file; `$(<file)` would fork.
said() {
  local line=
  { IFS= read -r line <"$2"; } 2>/dev/null
  echo "$1 $line"
}

system() {
  begin system
  said hostname /proc/sys/kernel/hostname
  said kernel /proc/sys/kernel/osrelease
  said boot /proc/sys/kernel/random/boot_id
  said uptime /proc/uptime
  echo "cpus $(nproc)"
  said ports /proc/sys/net/ipv4/ip_local_port_range
  said reserved /proc/sys/net/ipv4/ip_local_reserved_ports
  grep -E '^(ID|VERSION_ID|PRETTY_NAME)=' /etc/os-release | tr -d '"' | tr = ' '
  [ ! -e /run/reboot-required ] || echo "reboot required"
  grep -E '^(MemTotal|MemAvailable|SwapTotal|SwapFree):' /proc/meminfo
}

# Whether a run holds its lock, and what it says of itself; `run_state SECONDS` waits for the lock so
# long. Ours is shared, so that two looks are no run, and given back at once: a run waits longer.
run_state() {
  begin run
  [ -e "$run_lock" ] || return 0
  local code=0 line=
  { flock --shared --timeout "$1" --conflict-exit-code 75 9 || code=$?; } 9<"$run_lock"
  [ "$code" -eq 75 ] || return 0
  { IFS= read -r line <"$run_lock"; } 2>/dev/null
  echo "held $line"
}

# File systems that hang when their server is gone. Local ones answer, or say that they cannot.
remote_mounts() {
  local target
  while read -r _ _ _ _ target _; do printf '%b\n' "${target//\\/\\0}"; done < <(
    grep -E ' - (nfs4?|cifs|smb3|ceph|lustre|gpfs|beegfs|glusterfs|9p|virtiofs|fuse(blk|\.[^ ]+)?) ' \
      /proc/self/mountinfo)
}

# What hangs in the kernel may not even be killed, so nobody waits for it: it is left behind,
# with nothing of this connection in its hands.
hung_mounts() {
  local target descriptor answer index targets=() descriptors=()
  begin hung
  while IFS= read -r target; do
    exec {descriptor}< <(exec 2>/dev/null </dev/null; stat -f "$target" 2>&1 >/dev/null; echo)
    targets+=("$target") descriptors+=("$descriptor")
  done < <(remote_mounts)
  local end=$((SECONDS + 3)) left
  for index in "${!targets[@]}"; do
    left=$((end - SECONDS))
    if ! read -t "$((left > 0 ? left : 1))" -r answer <&"${descriptors[index]}"; then
      hung+=("${targets[index]}")
      echo "${targets[index]}"
    elif [ -n "$answer" ]; then
      printf '%s\t%s\n' "${targets[index]}" "$answer"
    fi
  done
}

on_hung_mount() {
  local target
  for target in "${hung[@]}"; do
    case $1/ in "$target"/*) return 0 ;; esac
  done
  return 1
}

# The nearest directory that exists, in `existing`: before the first deploy ours do not.
nearest() {
  existing=$1
  while [ ! -e "$existing" ]; do existing=${existing%/*}; [ -n "$existing" ] || existing=/; done
}

# A line a path, in their order.
disk_lines() { df -B1 --output=target,fstype,size,avail,itotal,iavail "$@" 2>&1 | tail -n +2; }

disk() {
  local path=$1
  while [ ! -e "$path" ]; do path=${path%/*}; [ -n "$path" ] || path=/; done
  df -B1 --output=target,fstype,size,avail,itotal,iavail "$path" 2>&1 | tail -n +2
}

disk_in_time() {
  if on_hung_mount "$1"; then printf '%s= 124\n' "$mark"; else within 3 disk "$1"; fi
}

# What is largest on a file system that is full: directories, three levels down.
largest() {
  du -x -B1 --max-depth=3 "$1" 2>/dev/null | sort -n | tail -n 40
}

disks() {
  local path line existing full=() lines=() there=() index docker_root
  docker_root=$(grep -oE '"data-root"[[:space:]]*:[[:space:]]*"/[^"]+"' "$daemon_json" 2>/dev/null)
  docker_root=${docker_root%\"} docker_root=${docker_root##*\"}
  docker_root=${docker_root:-/var/lib/docker}
  local looked=(/ "$state" "$ray_directory" "$docker_root" /var/log)
  if [ ${#hung[@]} -eq 0 ]; then
    # One program for all: on a host that is short of CPU every fork is felt.
    for path in "${looked[@]}"; do nearest "$path"; there+=("$existing"); done
    mapfile -t lines < <(disk_lines "${there[@]}")
  fi
  for index in "${!looked[@]}"; do
    path=${looked[index]}
    begin disk "$path"
    # A path of ours may lead to a hung mount by a link, so each has its limit then.
    if [ ${#lines[@]} -eq ${#looked[@]} ]; then line=${lines[index]}; else line=$(disk_in_time "$path"); fi
    echo "$line"
    local target _ avail inodes free
    read -r target _ _ avail inodes free <<<"$line"
    if [ "$avail" -lt $((1 << 30)) ] || { [ "$inodes" -gt 0 ] && [ "$free" -lt 1000 ]; }; then
      full+=("$target")
    fi 2>/dev/null
  done
  if [ ${#full[@]} -gt 0 ]; then
    begin usage
    while IFS= read -r path; do within 6 largest "$path"; done < <(printf '%s\n' "${full[@]}" | sort -u)
  fi
  begin mounts
  cat /proc/self/mountinfo
}

units_state() {
  begin units
  systemctl show --timestamp=unix --property="Id,LoadState,ActiveState,SubState,UnitFileState,\
NeedDaemonReload,Result,ExecMainStatus,ExecMainCode,NRestarts,ActiveEnterTimestamp,\
ExecMainStartTimestamp,InactiveExitTimestamp,StateChangeTimestamp,FragmentPath,DropInPaths,StatusText,Job" "${units[@]}" 2>&1
}

kernel_log() {
  begin kernel
  timeout 4 journalctl --dmesg --boot --lines=5000 --no-pager --output=short-unix 2>/dev/null |
    grep -E 'Out of memory|oom-kill|NVRM: Xid|I/O error|EXT4-fs error|nvme.*(timeout|reset)|Remounting filesystem read-only' |
    tail -n 40
}

# Last words of every unit that does not run as it should.
unit_logs() {
  local line unit="" load="" active="" restarts=0
  while IFS= read -r line; do
    case $line in
      Id=*) unit=${line#*=} ;;
      LoadState=*) load=${line#*=} ;;
      ActiveState=*) active=${line#*=} ;;
      NRestarts=*) restarts=${line#*=} ;;
      "") [ "$load" = not-found ] || one_log ;;
    esac
  done < <(systemctl show --property=Id,LoadState,ActiveState,NRestarts "${ours[@]}" docker.service; echo)
}

one_log() {
  if [ "$active" != active ] || { [ "$unit" != docker.service ] &&
    { [ "${restarts:-0}" -gt 0 ] || [ "$log_lines" -gt 0 ]; }; }; then
    begin journal "$unit"
    timeout 5 journalctl --boot --unit="$unit" --lines="$((log_lines > 40 ? log_lines : 40))" \
      --no-pager --output=short-unix 2>/dev/null
  fi
  restarts=0
}

# Where one of ours is not active, or logs are read, how each ended last in this boot: systemd's own
# lines, what `attempt` said in the unit's journal, and of the unit's own words before the end the
# last, and what may name a cause: the tracebacks of all ranks come after it.
# Hundreds of lines of the logs of Ray's processes may stand between them, of which only complaints
# tell anything; all are of one process, which may end amid them.
unit_ends() {
  if [ "$log_lines" -eq 0 ] && ! systemctl is-active "${ours[@]}" | grep -qvx active; then return; fi
  local unit lines last log
  for unit in "${ours[@]}"; do
    lines=$(timeout 5 journalctl --boot --no-pager --output=short-unix --lines=60 _PID=1 "UNIT=$unit" 2>/dev/null |
      grep -E ': (Main process exited|Control process exited|Failed with result|Start request repeated|Deactivated successfully|start operation timed out|Scheduled restart job)|: (Stopping|Starting|Started) ' | tail -n 15)
    last=$(grep -vE ': (Starting |Started |[^ ]+: Scheduled)' <<<"$lines" | tail -n 1)
    [ -n "$last" ] || continue
    begin ends "$unit"
    echo "$lines"
    timeout 5 journalctl --boot --no-pager --output=short-unix --lines=12 _UID=0 \
      SYSLOG_IDENTIFIER=vllm-cluster "OBJECT_SYSTEMD_UNIT=$unit" 2>/dev/null
    log=$(timeout 5 journalctl --boot --no-pager --output=short-unix --lines=1500 --unit="$unit" \
      --until="@$((${last%%.*} + 1))" 2>/dev/null |
      awk '
        / systemd\[/ { next }
        / -- -+ BEGIN .* tail/ { tail = $3 }
        / -- -+ END .* tail/ { tail = ""; next }
        $3 != tail || / [EF] [0-9]+ [0-9]+\] | level=error /' |
      grep -avP -- "$noise" | tr -d '\0')
    printf '%s\n' "$log" | grep -aP -- "$causes|stopped while vLLM started" | tail -n 80
    printf '%s\n' "$log" | tail -n 60
  done
}

# Where vLLM's own log of its last start has each rank.
rank_lines() {
  [ "$log_lines" -gt 0 ] || return 0
  begin ranks
  timeout 6 journalctl --unit=vllm.service --no-pager --output=cat --grep='in world size .* is assigned' \
    "_SYSTEMD_INVOCATION_ID=$(systemctl show --property=InvocationID --value vllm.service)" 2>/dev/null
}
