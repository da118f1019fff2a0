"""Every path on a host, decided once."""

from __future__ import annotations

CONFIG = "/etc/vllm-cluster"
STATE = "/var/lib/vllm-cluster"
SCRIPTS = "/usr/local/lib/vllm-cluster"
GENERATION_TOOL = f"{SCRIPTS}/generation"
UNITS = "/etc/systemd/system"

# One file for the host's python3: brings weights and images from host to host.
AGENT = f"{SCRIPTS}/weights-agent.pyz"

ENVIRONMENT = f"{CONFIG}/cluster.env"
# Which hosts belong to the cluster, and which have left it.
MEMBERS = f"{CONFIG}/members.json"
# What this host was before us, for `down`. Not beneath STATE: a declared disk may be mounted there
# after the first changes were made.
OWNED = f"{CONFIG}/owned"
# What the units were and are: the way back of an upgrade.
GENERATIONS = f"{STATE}/generations"
# Names of the images of kept generations, so that no cleaning takes them by the way.
KEPT_IMAGES = "vllm-cluster/kept"
GENERATION_UNIT = "vllm-cluster-generation.service"
FIREWALL = f"{CONFIG}/firewall.nft"
FIREWALL_UNIT = "vllm-cluster-firewall.service"
# Beside the rules: STATE may be a disk of its own, which is not there yet when the firewall closes.
FIREWALL_STATE = f"{CONFIG}/firewall"
SECRETS = f"{CONFIG}/secrets"
RAY_TOKEN = f"{SECRETS}/ray-token"
API_KEY = f"{SECRETS}/api-key"

# What Ray's containers share: its sessions, and vLLM's local message queues (ipc:// sockets). Ray
# makes its own directory writable for all, so that one lies in a directory of root's alone. A
# socket's path may have 107 bytes, of which Ray adds 64.
RAY = f"{STATE}/ray"
RAY_SESSIONS = f"{RAY}/sessions"
RPC = f"{RAY}/rpc"
# Compiled kernels and graphs, kept so that a restart need not compile them again.
COMPILE_CACHE = f"{STATE}/compile-cache"
VLLM_CONFIG = f"{CONFIG}/vllm"
# What is known of a model on a file system that hosts only read: its manifest, how its files look.
WEIGHTS_NOTES = f"{STATE}/weights"
# What the month's reading of all weights found.
WEIGHTS_VERIFIED = f"{STATE}/weights-verified.json"
WEIGHTS_VERIFY = "vllm-cluster-weights-verify"

# What units note of themselves: counts of starts, reasons. Gone with the boot, like systemd's own.
UNITS_STATE = "/run/vllm-cluster/units"

# Where the containers see the files above. Not /run/secrets: images use it for their own.
IN_SECRETS = "/run/vllm-cluster/"
IN_TOKEN = "/run/vllm-cluster/ray-token"  # noqa: S105  a path
IN_API_KEY = "/run/vllm-cluster/api-key"
IN_SCRIPTS = "/opt/vllm-cluster"
