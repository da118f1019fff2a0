# State, rate and error counters of RDMA ports; `doctor network` sends this part alone.
infiniband() {
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
