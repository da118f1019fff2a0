our_files() {
  local path sum
  begin files
  stat -c '%a %U %G %s %Z %F|%n' "${files[@]}" "${secrets[@]}" "$secrets_directory" 2>/dev/null
  begin secrets
  for path in "${secrets[@]}"; do
    if [ -f "$path" ]; then
      # Equal or not is all that is to be known, so a digest with this run's own salt.
      sum=$(printf '%s' "$salt$(<"$path")" | sha256sum)
      echo "${sum:0:16} $path"
    fi
  done
  for path in "${shown_files[@]}"; do show_file "$path"; done
}

# Which generations have our files as they lie here: nobody has changed those.
kept_files() {
  local folder id path
  begin kept
  for folder in "$generations"/*/files; do
    id=${folder%/files}
    for path in "${files[@]}"; do
      if [ -f "$folder$path" ] && cmp -s "$folder$path" "$path"; then echo "${id##*/} $path"; fi
    done
  done
}

model_in_time() {
  begin model
  if on_hung_mount "$model_path"; then printf '%s= 124\n' "$mark"; else within 10 model; fi
  begin hashes
  if ! on_hung_mount "$model_path"; then within 20 touched; fi
}

# Names and sizes.
model() {
  if ! cd "$model_path" 2>/dev/null; then echo "absent"; return; fi
  # Links are followed: in a hub's cache they lead to the files. A broken one has its own size.
  find -L . -path ./.vllm-cluster -prune -o -not -type d -printf 'entry %y %s %P\n'
  local manifest=.vllm-cluster/manifest.json
  if [ -f "$manifest" ]; then echo "manifest $(sha256sum "$manifest" | cut -c1-64)"; fi
}

# Content, of files that were touched after the manifest was written alone: of 140 GB it takes
# minutes.
touched() {
  local manifest=.vllm-cluster/manifest.json
  if cd "$model_path" 2>/dev/null && [ -f "$manifest" ]; then
    find -L . -path ./.vllm-cluster -prune -o -type f -newercm "$manifest" -print0 |
      xargs -0 -r sha256sum | sed 's|^\([0-9a-f]*\) [ *]\./|hash \1 |'
  fi
}
