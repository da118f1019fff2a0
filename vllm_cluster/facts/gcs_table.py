"""Whether the head's door to Ray's GCS (`door only`) stands as its unit put it up."""

from __future__ import annotations

from typing import Literal, cast

from vllm_cluster.plan import paths

State = Literal["", "absent", "changed"]

# For sh. The file is there only while the table is, so it is asked for once more afterwards: the
# unit may have ended meanwhile. What nft shows of the file is learned in an empty network of its
# own; where root may make none, the table itself has to be there and no more is known.
SHELL = f"""
gcs_table() (
  kept={paths.UNITS_STATE}/gcs.nft
  [ -e "$kept" ] || return 0
  list='nft -n list table inet vllm_cluster_gcs'
  PATH=$PATH:/usr/sbin
  have=$($list 2>/dev/null)
  want=$(unshare --net sh -c "nft -f $kept && $list" 2>/dev/null)
  [ -e "$kept" ] || return 0
  if [ -z "$have" ]; then echo "gcs absent"
  elif [ -n "$want" ] && [ "$have" != "$want" ]; then echo "gcs changed"; fi
)
"""


def read(word: str) -> State:
    """What the script said after `gcs`. Raises ValueError for another word."""
    if word not in {"", "absent", "changed"}:
        raise ValueError(f"unexpected word: {word[:100]!r}")
    return cast(State, word)
