# HTTP by hand: METHOD ADDRESS PORT PATH BODY FILE-OF-THE-KEY. The key is read here, so that it is
# on no command line. The answer follows as it comes, headers included.
ask() {
  local key=
  if [ -n "$6" ] && [ -r "$6" ]; then key="Authorization: Bearer $(<"$6")"$'\r\n'; fi
  exec 3<>"/dev/tcp/$2/$3" || return 7
  printf '%s %s HTTP/1.0\r\nHost: %s\r\n%sContent-Type: application/json\r\nContent-Length: %s\r\n\r\n%s' \
    "$1" "$4" "$2" "$key" "${#5}" "$5" >&3
  cat <&3
  echo
}

ray_node() {
  begin raylet
  within 3 ask GET "$address" "$agent_port" /api/local_raylet_healthz '' ''
}

ray_head() {
  begin ray-nodes
  within 6 ask GET 127.0.0.1 "$dashboard_port" '/api/v0/nodes?detail=1&limit=10000' '' "$token_file"
}

api_quick() {
  begin api-health
  within 4 ask GET 127.0.0.1 "$api_port" /health '' ''
  begin api-metrics
  within 4 ask GET 127.0.0.1 "$api_port" /metrics '' '' |
    grep -E '^HTTP|^[^#]*(vllm:(num_requests|kv_cache_usage|generation_tokens|prompt_tokens|num_preemptions|request_success)|process_start_time)|^'"$mark"
}

api_completion() {
  local request answer
  begin api-completion
  # vLLM has the paths of its model's task alone; the others are 404.
  for request in "${completion_requests[@]}"; do
    answer=$(within "$completion_limit" ask POST 127.0.0.1 "$api_port" "${request%% *}" "${request#* }" "$api_key_file")
    case $answer in HTTP/1.?\ 404*) ;; *) break ;; esac
  done
  printf '%s\n' "$answer"
  # Nothing came: whether the engine works for others meanwhile.
  case $answer in
    HTTP/*) ;;
    *) begin api-later
      within 4 ask GET 127.0.0.1 "$api_port" /metrics '' '' |
        grep -E '^[^#]*vllm:(generation_tokens|prompt_tokens)' ;;
  esac
  [ "$keyless" = yes ] || return 0
  begin api-keyless
  within 4 ask GET 127.0.0.1 "$api_port" /v1/models '' '' | head -n 1
}

# What units note of themselves: UNIT KIND TEXT, a line each. Before the watchdog's words stands the
# start that they are of, before those of the history their time. What is watched: at which uptime
# last. Starts since it last held: a number.
recovery() {
  local file name line
  begin recovery
  for file in "$units_state"/*.{gave-up,watchdog,history}; do
    [ -f "$file" ] || continue
    name=${file##*/}
    sed "s/^[0-9a-f]\{32\} //; s/^/${name%.*} ${name##*.} /" "$file" | tail -n 50
  done
  for file in "$units_state"/*.{watched,starts}; do
    name=${file##*/}
    if [ -f "$file" ] && read -r line <"$file"; then
      printf '%s %s %s\n' "${name%.*}" "${name##*.}" "$line"
    fi
  done
}
