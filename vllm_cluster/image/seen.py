"""What Docker of one host has, asked in one round trip."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field

# Beneath Docker's own directory, because there the room for images is.
STAGING = "vllm-cluster-images"

# A host that has the image says so and nothing else: that is every run but the first.
_SCRIPT = r"""
root=$(sed -n 's/.*"data-root"[^"]*"\([^"]*\)".*/\1/p' /etc/docker/daemon.json 2>/dev/null)
root=${root:-/var/lib/docker}
id=$(docker image inspect --format '{{.Id}}' "$image" 2>/dev/null)
[ ! -e "$root/$staging" ] || staged=yes
if [ "$all" != yes ]; then echo "id $id"; echo "staged ${staged:-no}"; exit 0; fi
if [ -z "$id" ] && [ -n "$reference" ]; then
  other=$(docker image inspect --format '{{.Id}}' "$reference" 2>/dev/null)
fi
echo "id $id"; echo "other $other"; echo "root $root/$staging"; echo "staged ${staged:-no}"
docker info --format 'driver {{.Driver}} {{json .DriverStatus}}' || exit 1
near=$root; while [ ! -e "$near" ]; do near=$(dirname "$near"); done
echo "held $(du -s -B1 "$root/$staging" 2>/dev/null | cut -f1)"
echo "disk $(df -B1 --output=avail,size "$near" | tail -n1)"
card=$(ip -o addr show 2>/dev/null | awk -v a="$address/" 'index($4, a) == 1 { print $2; exit }')
echo "mbit $(cat "/sys/class/net/$card/speed" 2>/dev/null)"
images=$(docker image ls --all --quiet --no-trunc | sort -u)
[ -z "$images" ] ||
  docker image inspect --format 'image {{.Id}} {{.Size}} {{json .RootFS.Layers}}' $images
true
"""


@dataclass(frozen=True)
class Image:
    """An image of a host: its ID, its size in bytes, its diff IDs from the bottom up."""

    id: str
    size_bytes: int
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """`id` of the wanted image, empty where it is missing; `staging` our directory for files.

    Room for it: `free_bytes` of the disk's `total_bytes`, and the `held_bytes` that an interrupted
    run has filled already.
    `other` is the ID of one that was pulled under its registry's name only. `store` is Docker's
    graph driver, `containerd` where it keeps images in containerd's store instead.
    """

    id: str = ""
    other: str = ""
    staging: str = ""
    staged: bool = False
    store: str = ""
    containerd: bool = False
    free_bytes: int = 0
    total_bytes: int = 0
    held_bytes: int = 0
    link_mbit: float | None = None
    images: tuple[Image, ...] = field(default=())

    def image(self, image_id: str) -> Image | None:
        """That one of its images."""
        return next((image for image in self.images if image.id == image_id), None)


def script(image: str, reference: str = "", address: str = "", *, everything: bool) -> str:
    """The shell lines that ask: whether the image is there, or `everything` of Docker's images."""
    values = {
        "image": image, "reference": reference, "address": address, "staging": STAGING,
        "all": "yes" if everything else "no",
    }  # fmt: skip
    given = "; ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    return f"{given}; staged=; other={_SCRIPT}"


def parse(output: str) -> Seen:
    """What the script printed. Raises ValueError for anything else."""
    words: dict[str, str] = {}
    images: list[Image] = []
    for line in output.splitlines():
        key, _, rest = line.partition(" ")
        if key == "image":
            image_id, size, layers = rest.split(" ", 2)
            images.append(Image(image_id, int(size), tuple(json.loads(layers) or ())))
        else:
            words[key] = rest.strip()
    if "id" not in words:
        raise ValueError(f"not what a host says of its Docker: {output[:200]!r}")
    mbit, disk = words.get("mbit", ""), words.get("disk", "").split() or ["0", "0"]
    return Seen(
        id=words["id"],
        other=words.get("other", ""),
        staging=words.get("root", ""),
        staged=words.get("staged") == "yes",
        store=words.get("driver", "").partition(" ")[0],
        # https://docs.docker.com/engine/storage/containerd/: DriverStatus names the snapshotter.
        containerd="io.containerd.snapshotter" in words.get("driver", ""),
        free_bytes=int(disk[0]),
        total_bytes=int(disk[1]),
        held_bytes=int(words.get("held") or 0),
        link_mbit=float(mbit) if mbit.isdigit() and int(mbit) > 0 else None,
        images=tuple(images),
    )
