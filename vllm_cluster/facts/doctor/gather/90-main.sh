main() {
  begin clock "$EPOCHREALTIME"
  if [ "$(id -u)" -ne 0 ]; then begin not-root; id; return; fi
  hung=()
  # A run that has just ended may still be on its way out.
  run_state 1
  start peers all_peers
  # A name server that is gone takes ten seconds a name.
  start names within 6 names
  hung_mounts
  start docker docker_state
  start holder firewall_holder
  start model model_in_time
  start weights disk_in_time "$weights"
  if [ "$accelerator" = nvidia ]; then start gpu gpu; fi
  if [ "$serves" = yes ]; then
    start completion api_completion
    start quick api_quick
  fi
  if [ "$role" = head ] && [ "$ray" = yes ]; then start nodes ray_head; fi
  if [ "$ray" = yes ]; then start raylet ray_node; fi
  system
  disks
  cloud_init
  units_state
  recovery
  cards
  firewall
  our_files
  kept_files
  kernel_log
  unit_logs
  unit_ends
  ray_files_in_time
  rank_lines
  begin generations
  if [ -x "$generation_tool" ]; then timeout 15 "$generation_tool" show; fi
  begin disk "$weights"
  collect weights
  collect names
  collect holder
  collect docker
  collect model
  collect peers
  if [ "$accelerator" = nvidia ]; then collect gpu; fi
  if [ "$role" = head ] && [ "$ray" = yes ]; then collect nodes; fi
  if [ "$serves" = yes ]; then
    collect quick
    collect completion
  fi
  if [ "$ray" = yes ]; then collect raylet; fi
  # One that began meanwhile is behind what was read meanwhile.
  run_state 0
  begin end
}
