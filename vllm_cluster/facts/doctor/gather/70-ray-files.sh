# Ray writes into files, and little of it reaches the journal: what a raylet says before it ends, and
# each worker in its own words. The ends of those that changed since Ray's last start, the newest
# first. Links are not followed: what lies there was written in a container.
ray_files() {
  local session changed size name
  session=$(readlink "$ray_directory/session_latest") || return 0
  cd "$ray_directory/${session##*/}/logs" 2>/dev/null || return 0
  while read -r changed size name; do
    begin ray-file "$changed $name"
    # The first line of a piece is mostly half of one. The blank keeps any line from being a mark.
    if [ "$size" -le 24576 ]; then cat "$name"; else tail -c 24576 "$name" | tail -n +2; fi | sed 's/^/ /'
    echo
  done < <(find . -maxdepth 1 -type f -size +0 -newermt "@$1" \( -name 'raylet.err' -o -name 'raylet.out' \
    -o -name 'gcs_server.err' -o -name 'gcs_server.out' -o -name 'worker-*.err' -o -name 'worker-*.out' \
    -o -name 'python-core-*.log' -o -name 'monitor.log' -o -name 'monitor.err' \
    -o -name '*_agent.log' -o -name '*_agent.err' -o -name 'dashboard.log' -o -name 'dashboard.err' \
    -o -name ray_process_exit.log \) \
    -printf '%T@ %s %f\n' 2>/dev/null | sort -rn | head -n 48)
}

ray_files_in_time() {
  if [ "$ray" != yes ] || [ "$ray_words" != yes ] || on_hung_mount "$ray_directory"; then return 0; fi
  local unit since
  for unit in "${ours[@]}"; do
    case $unit in ray-*) ;; *) continue ;; esac
    since=$(systemctl show --timestamp=unix --property=ExecMainStartTimestamp --value "$unit" 2>/dev/null)
    since=${since#@}
    # Nothing says when it started: then all of the last session.
    within 6 ray_files "${since:-0}"
  done
}
