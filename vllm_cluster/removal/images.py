"""Images on a host: the names that generations gave them go, and with them no image but ours."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from vllm_cluster.plan import paths

# The last name of an image takes the image along; Docker keeps one that a digest still names.
SHELL = rf"""
kept_names() {{ docker image ls --format '{{{{.Repository}}}}:{{{{.Tag}}}}' {paths.KEPT_IMAGES}; }}
other_names() {{
  local lines='{{{{range .RepoTags}}}}{{{{println .}}}}{{{{end}}}}'
  docker image inspect --format "$lines${{lines/Tags/Digests}}" "$1" |
    grep -v '^{paths.KEPT_IMAGES}[:@]' | grep .
}}
"""


def no_kept_names(ours: Iterable[str]) -> str:
    """No name of a kept generation is left, but one that an image of somebody else has alone.

    `ours`: names of generations whose image we brought.
    """
    names = "\n".join(ours)
    return f"""{SHELL}
left=
for name in $(kept_names); do
  if [ -z "$(other_names "$name")" ] && ! grep -qxF -e "$name" <<<{shlex.quote(names)}; then
    left="$left $name: the only name of an image that was not brought by us;"
  elif ! said=$(docker image rm "$name" 2>&1); then left="$left $name: $said;"
  fi
done
[ -z "$left" ] || {{ echo "${{left# }}"; exit 9; }}
"""


def no_image(image: str) -> str:
    """Remove an image that we brought, unless somebody else's container uses it."""
    name = shlex.quote(image)
    return (
        f"docker image inspect {name} >/dev/null 2>&1 || exit 0; "
        f'said=$(docker image rm {name} 2>&1) || {{ echo "$said"; exit 9; }}'
    )
