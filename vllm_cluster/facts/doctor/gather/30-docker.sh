docker_state() {
  have docker || { begin docker-info; echo "no docker"; return; }
  begin docker-info
  timeout 8 docker info --format '{{json .}}' 2>&1
  local ids
  ids=$(timeout 8 docker ps --all --quiet --no-trunc 2>/dev/null) || return
  begin docker-image
  timeout 8 docker image inspect --format '{{.Id}}' "$image" 2>&1
  [ -n "$ids" ] || return
  begin containers
  # Chosen fields: the environment, arguments, labels and health checks of other people's containers
  # are not ours to read; a proxy's labels hold hashes of passwords.
  local format='{"name":{{json .Name}},"id":{{json .Id}},"image":{{json .Image}},"state":{"Running":{{.State.Running}},"Status":{{json .State.Status}},"Pid":{{.State.Pid}},"ExitCode":{{.State.ExitCode}},"OOMKilled":{{.State.OOMKilled}}},"created":{{json .Created}},"restart":{{json .HostConfig.RestartPolicy.Name}},"network":{{json .HostConfig.NetworkMode}},"ports":{{json .NetworkSettings.Ports}},"shm":{{json .HostConfig.ShmSize}},"ipc":{{json .HostConfig.IpcMode}},"config":{{json (index .Config.Labels "vllm-cluster.config")}}}'
  local lines
  # shellcheck disable=SC2086
  lines=$(timeout 8 docker container inspect --format "$format" $ids 2>/dev/null)
  echo "$lines"
  local line
  while IFS= read -r line; do
    [[ $line =~ ^\{\"name\":\"/([^\"]+)\" ]] || continue
    local name=${BASH_REMATCH[1]} kept
    for kept in "${containers[@]}"; do
      if [ "$name" = "$kept" ] && [[ $line =~ \"Pid\":([0-9]+) ]] && [ "${BASH_REMATCH[1]}" != 0 ]; then
        inside "$name" "${BASH_REMATCH[1]}"
      fi
    done
  done <<<"$lines"
}

# A container as its first process has it: no exec into it, and it may be hung.
inside() {
  local root=/proc/$2/root line
  begin inside "$1"
  [ -d "$root/" ] || return
  echo "namespace $(readlink "/proc/$2/ns/pid")"
  echo "shm $(stat -f -c '%b %f %S' "$root/dev/shm" 2>/dev/null)"
  grep -E '^Max (locked memory|open files|stack size)' "/proc/$2/limits" 2>/dev/null
  local path=
  while IFS= read -r -d '' line; do
    case $line in
      VLLM_HOST_IP=* | NCCL_*=* | GLOO_SOCKET_IFNAME=* | TP_SOCKET_IFNAME=* | RAY_ADDRESS=* | RAY_AUTH_MODE=* | NVIDIA_VISIBLE_DEVICES=* | HF_HUB_OFFLINE=*)
        echo "env $line" ;;
      PATH=*) path=${line#PATH=} ;;
    esac
  done <"/proc/$2/environ"
  local folder found
  for folder in ${path//:/ }; do
    for found in "$root${folder%/bin}"/lib/python3*/{site,dist}-packages/{ray,vllm,torch}-[0-9]*.dist-info; do
      [ ! -d "$found" ] || echo "package ${found#"$root"}"
    done
  done | sort -u
  python_version "$root" "$path"
  # A daemon-reload may have taken the GPUs away from under it; nothing outside shows that.
  if [ "$accelerator" = nvidia ]; then
    echo "nvml $(timeout 5 docker exec "$1" nvidia-smi -L 2>&1 </dev/null | head -n 1)"
  fi
  ls -d "$root"/dev/infiniband/uverbs* 2>/dev/null | sed "s|$root|device |"
}

# Python to the patch, which Ray compares: from its headers, else from the program's own text.
# Nothing is followed: links in a container lead nowhere from here.
python_version() {
  local folder minor file found
  for folder in ${2//:/ }; do
    for file in "$1${folder%/bin}"/lib/python3.*/{site,dist}-packages; do
      [ -d "$file" ] || continue
      file=${file%/*} minor=${file##*/python}
      for file in "$1"{/usr,/usr/local,"${folder%/bin}"}/include/python"$minor"/patchlevel.h \
        "$1"{/usr/local/lib,/usr/lib/*-linux-gnu,/usr/lib}/libpython"$minor".so.1.0 \
        "$1"{"$folder",/usr/local/bin,/usr/bin}/python"$minor"; do
        [ -f "$file" ] && [ ! -L "$file" ] || continue
        found=$(grep -aoE -m1 "${minor//./\\.}\.[0-9]+" "$file" 2>/dev/null | head -n 1)
        [ -z "$found" ] || { echo "python $found"; return; }
      done
    done
  done
}
