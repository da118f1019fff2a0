"""Several hosts, and what starts the processes on them."""

from vllm_cluster.plan.refuse.request import ServeRequest
from vllm_cluster.plan.refuse.rule import Problem, RuleBook

BOOK = RuleBook()
PARALLEL = "vllm/config/parallel.py"
ARGS = "vllm/engine/arg_utils.py"
SERVE = "vllm/entrypoints/cli/serve.py"
OWN_START = ("mp", "uni", "external_launcher")
STAGED = (None, "ray", "mp", "external_launcher")


@BOOK.rule(
    "nnodes-backend",
    "--nnodes with a backend that places processes itself, such as Ray",
    PARALLEL,
    "nnodes > 1 can only be set when distributed executor",
)
def nnodes_backend(request: ServeRequest) -> Problem | None:
    if request.nodes <= 1 or request.backend in (None, *OWN_START):
        return None
    return Problem(
        f"`--nnodes {request.nodes}` is vLLM's own way over several hosts, and backend "
        f"{request.backend} is another.",
        "With Ray leave out --nnodes, --node-rank and --master-addr: the hosts follow from Ray's "
        "cluster. Without Ray write --distributed-executor-backend mp.",
    )


@BOOK.rule(
    "nnodes-dp-backend",
    "--nnodes with replicas placed by Ray",
    ARGS,
    "`--data-parallel-backend mp`; got ",
    "nnodes > 1 is only supported with data_parallel_backend=mp",
)
def nnodes_dp_backend(request: ServeRequest) -> Problem | None:
    backend = request.get("data_parallel_backend") or "mp"
    if request.nodes <= 1 or backend == "mp":
        return None
    return Problem(
        f"`--nnodes {request.nodes}` needs replicas that vLLM starts itself, and "
        f"--data-parallel-backend is {backend}.",
        "Write --data-parallel-backend mp, or leave out --nnodes.",
    )


@BOOK.rule(
    "nnodes-divides",
    "--nnodes that does not divide the number of processes",
    ARGS,
    "must evenly divide the total ",
    "must be divisible by nnodes=",
)
def nnodes_divides(request: ServeRequest) -> Problem | None:
    world = request.replica * request.data_parallel
    if request.nodes <= 1 or world % request.nodes == 0:
        return None
    return Problem(
        f"{world} processes (TP x PP x DP) cannot be shared out evenly over {request.nodes} hosts.",
        "Make TP x PP x DP a multiple of --nnodes.",
    )


@BOOK.rule(
    "node-rank",
    "--node-rank outside of 0 to --nnodes - 1",
    ARGS,
    "`--node-rank` must ",
    "must be less than nnodes=",
)
def node_rank(request: ServeRequest) -> Problem | None:
    rank = request.get("node_rank") or 0
    if request.nodes <= 1 or 0 <= rank < request.nodes:
        return None
    return Problem(
        f"`--node-rank {rank}` with {request.nodes} hosts: ranks count from 0.",
        f"Give every host its own rank from 0 to {request.nodes - 1}.",
    )


@BOOK.rule(
    "nnodes-dp-groups",
    "hosts that cannot be shared out over groups of replicas",
    PARALLEL,
    "data parallel node groups ",
    since="0.32.0",
)
def nnodes_dp_groups(request: ServeRequest) -> Problem | None:
    local = request.get("data_parallel_size_local")
    if request.nodes <= 1 or request.external_balancer or not local:
        return None
    groups = request.data_parallel // local
    if groups == 0 or request.nodes % groups == 0:
        return None
    return Problem(
        f"{request.data_parallel} replicas, {local} on a host, make {groups} groups, which "
        f"{request.nodes} hosts cannot be shared out over.",
        "Leave out --data-parallel-size-local: it then follows from --nnodes.",
    )


@BOOK.rule(
    "world-exceeds-host",
    "more GPUs than the host has, with no backend named",
    PARALLEL,
    "is larger than the number of ",
)
def world_exceeds_host(request: ServeRequest) -> Problem | None:
    gpus = request.gpus_per_host
    if gpus is None or request.backend is not None or request.nodes > 1 or request.replica <= gpus:
        return None
    return Problem(
        f"TP x PP is {request.replica} and the host has {gpus} GPUs; vLLM does not look for other "
        "hosts by itself.",
        "Write --distributed-executor-backend ray, or set --nnodes without Ray.",
    )


@BOOK.rule(
    "pp-backend",
    "pipeline stages with a backend of one process",
    ARGS,
    '"Pipeline Parallelism without Ray distributed "',
)
def pp_backend(request: ServeRequest) -> Problem | None:
    if request.pipeline_parallel <= 1 or request.backend in STAGED:
        return None
    return Problem(
        f"Pipeline stages ({request.pipeline_parallel}) do not work with backend "
        f"{request.backend}.",
        "Write --distributed-executor-backend ray over several hosts, mp in one.",
    )


@BOOK.rule(
    "nsight-ray",
    "--ray-workers-use-nsight without Ray",
    PARALLEL,
    "Unable to use nsight profiling unless workers run with Ray.",
)
def nsight_ray(request: ServeRequest) -> Problem | None:
    if not request.get("ray_workers_use_nsight") or request.backend == "ray":
        return None
    return Problem(
        "`--ray-workers-use-nsight` profiles Ray's workers, and there are none.",
        "Leave it out, or write --distributed-executor-backend ray.",
    )


@BOOK.rule(
    "headless-api-servers",
    "--headless with API servers",
    SERVE,
    "used with --headless (no API servers are started in ",
)
def headless_api_servers(request: ServeRequest) -> Problem | None:
    servers = request.get("api_server_count")
    if not request.get("headless") or not servers or servers <= 0:
        return None
    return Problem(
        f"`--headless` starts no API server, and `--api-server-count {servers}` asks for some.",
        "Leave out --api-server-count on headless hosts.",
    )


@BOOK.rule(
    "headless-hybrid",
    "--headless with --data-parallel-hybrid-lb",
    ARGS,
    "data_parallel_hybrid_lb is not applicable in headless mode",
)
def headless_hybrid(request: ServeRequest) -> Problem | None:
    if not request.get("headless") or not request.get("data_parallel_hybrid_lb"):
        return None
    return Problem(
        "Hybrid load balancing has an API server on every host, and `--headless` means none here.",
        "Leave out --headless, or --data-parallel-hybrid-lb.",
    )


@BOOK.rule(
    "layer-partition",
    "VLLM_PP_LAYER_PARTITION that does not fit the stages or the layers",
    "vllm/distributed/utils.py",
    "does not match {pp_size=}",
)
def layer_partition(request: ServeRequest) -> Problem | None:
    written = request.environment.get("VLLM_PP_LAYER_PARTITION")
    if written is None or request.pipeline_parallel <= 1:
        return None
    fix = "Write as many numbers as there are stages, and let their sum be the number of layers."
    try:
        parts = [int(part) for part in written.split(",")]
    except ValueError:
        return Problem(f"VLLM_PP_LAYER_PARTITION is no list of numbers: {written}.", fix)
    stages = request.pipeline_parallel
    if len(parts) != stages:
        return Problem(f"VLLM_PP_LAYER_PARTITION has {len(parts)} parts for {stages} stages.", fix)
    layers = request.config.layers if request.config else None
    if layers is not None and sum(parts) != layers:
        return Problem(
            f"VLLM_PP_LAYER_PARTITION shares out {sum(parts)} layers, the model has {layers}.", fix
        )
    return None


@BOOK.rule(
    "numa-bind",
    "NUMA nodes or CPUs without --numa-bind",
    PARALLEL,
    "numa_bind_nodes and numa_bind_cpus require numa_bind=True.",
)
def numa_bind(request: ServeRequest) -> Problem | None:
    named = request.get("numa_bind_nodes") or request.get("numa_bind_cpus")
    if not named or request.get("numa_bind"):
        return None
    return Problem(
        "`--numa-bind-nodes` and `--numa-bind-cpus` do nothing without `--numa-bind`.",
        "Add --numa-bind.",
    )
