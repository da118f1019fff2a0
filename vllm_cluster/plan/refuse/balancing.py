"""Replicas of a model, and who shares requests out over them."""

from vllm_cluster.plan.refuse.request import ServeRequest
from vllm_cluster.plan.refuse.rule import Problem, RuleBook

BOOK = RuleBook()
PARALLEL = "vllm/config/parallel.py"
ARGS = "vllm/engine/arg_utils.py"
SERVE = "vllm/entrypoints/cli/serve.py"
SUPERVISOR = "vllm/entrypoints/launchers/dp_supervisor.py"


@BOOK.rule(
    "balancer-modes",
    "more than one way of balancing requests over replicas",
    SERVE,
    "Cannot use more than one data parallel load balancing mode. ",
)
def balancer_modes(request: ServeRequest) -> Problem | None:
    hybrid = bool(request.get("data_parallel_hybrid_lb"))
    several = bool(request.get("data_parallel_multi_port_external_lb"))
    if not hybrid and not several:
        hybrid = request.get("data_parallel_start_rank") is not None
    if sum([request.external_balancer, hybrid, several]) <= 1:
        return None
    return Problem(
        "Two ways of balancing requests over replicas are asked for at once.",
        "Take one of --data-parallel-external-lb (or --data-parallel-rank), "
        "--data-parallel-hybrid-lb (or --data-parallel-start-rank) and "
        "--data-parallel-multi-port-external-lb.",
    )


@BOOK.rule(
    "hybrid-local-size",
    "--data-parallel-hybrid-lb without --data-parallel-size-local",
    ARGS,
    "`--data-parallel-hybrid-lb` requires ",
    "data_parallel_size_local must be set to use data_parallel_hybrid_lb.",
)
def hybrid_local_size(request: ServeRequest) -> Problem | None:
    if not request.get("data_parallel_hybrid_lb") or request.external_balancer:
        return None
    if request.get("data_parallel_size_local") is not None or request.nodes > 1:
        return None
    return Problem(
        "`--data-parallel-hybrid-lb` must know how many replicas this host has.",
        "Add --data-parallel-size-local.",
    )


@BOOK.rule(
    "external-rank",
    "--data-parallel-external-lb without a rank",
    ARGS,
    "`--data-parallel-external-lb` requires a data-parallel ",
    "data_parallel_rank or node_rank must be specified if ",
)
def external_rank(request: ServeRequest) -> Problem | None:
    if not request.get("data_parallel_external_lb"):
        return None
    inferred = request.nodes > 1 and request.data_parallel > 1
    if request.get("data_parallel_rank") is not None or inferred:
        return None
    return Problem(
        "`--data-parallel-external-lb` must know which replica this is.",
        "Add --data-parallel-rank.",
    )


@BOOK.rule(
    "external-node-rank",
    "replicas over several hosts each, told apart by --node-rank alone",
    ARGS,
    "data-parallel ranks when `--nnodes` is not divisible ",
    since="0.32.0",
)
def external_node_rank(request: ServeRequest) -> Problem | None:
    if not request.get("data_parallel_external_lb") or request.data_parallel <= 1:
        return None
    if request.nodes <= 1 or request.get("data_parallel_rank") is not None:
        return None
    if request.nodes % request.data_parallel == 0:
        return None
    return Problem(
        f"`--node-rank` does not say which of {request.data_parallel} replicas this is: "
        f"{request.nodes} hosts are no multiple of them.",
        "Add --data-parallel-rank.",
    )


@BOOK.rule(
    "external-local-size",
    "a replica with its own address, and more than one of them on the host",
    ARGS,
    "data-parallel rank requires `--data-parallel-size-local ",
    "data_parallel_size_local must be 1 or None when data_parallel_rank ",
)
def external_local_size(request: ServeRequest) -> Problem | None:
    local = request.get("data_parallel_size_local")
    if not request.external_balancer or local in (1, None):
        return None
    return Problem(
        f"With a rank of its own this process is one replica, and `--data-parallel-size-local "
        f"{local}` asks for {local}.",
        "Leave out --data-parallel-size-local.",
    )


@BOOK.rule(
    "external-dense",
    "external load balancing of a dense model",
    ARGS,
    "Non-MoE models do not support external data parallel mode. ",
)
def external_dense(request: ServeRequest) -> Problem | None:
    config = request.config
    if config is None or config.experts or request.data_parallel <= 1:
        return None
    if not request.external_balancer:
        return None
    return Problem(
        "Replicas of a dense model share nothing, so vLLM does not couple them behind an external "
        "balancer.",
        "Start independent servers without any --data-parallel argument, and balance over them.",
    )


@BOOK.rule(
    "external-single",
    "external load balancing with one replica",
    PARALLEL,
    "data_parallel_external_lb can only be set when data_parallel_size > 1",
)
def external_single(request: ServeRequest) -> Problem | None:
    if request.data_parallel > 1 or request.get("data_parallel_rank") is None:
        return None
    return Problem(
        "A rank among replicas is given, and there is one replica.",
        "Leave out --data-parallel-rank and --data-parallel-external-lb, or set "
        "--data-parallel-size.",
    )


@BOOK.rule(
    "dp-local-size",
    "more replicas on a host than in all",
    PARALLEL,
    "must be <= data_parallel_size (",
)
def dp_local_size(request: ServeRequest) -> Problem | None:
    local = request.get("data_parallel_size_local") or 0
    if local <= request.data_parallel or request.external_balancer:
        return None
    return Problem(
        f"`--data-parallel-size-local {local}` is more than --data-parallel-size "
        f"{request.data_parallel}.",
        "The local size is the share of this host, the other the number of all replicas.",
    )


@BOOK.rule(
    "dp-rank-range",
    "a replica's rank beyond the number of replicas",
    PARALLEL,
    "must be in the range [0, {self.data_parallel_size})",
)
def dp_rank_range(request: ServeRequest) -> Problem | None:
    rank = request.get("data_parallel_rank")
    if rank is None and request.get("data_parallel_size_local") is not None:
        rank = request.get("data_parallel_start_rank")
    if rank is None or request.data_parallel <= 1 or 0 <= rank < request.data_parallel:
        return None
    return Problem(
        f"Rank {rank} of {request.data_parallel} replicas: ranks count from 0.",
        f"Take a rank from 0 to {request.data_parallel - 1}.",
    )


@BOOK.rule(
    "multi-port-sizes",
    "--data-parallel-multi-port-external-lb with too few replicas on the host",
    SUPERVISOR,
    '"--data-parallel-size-local >= 2"',
    '"--data-parallel-size > 1"',
)
def multi_port_sizes(request: ServeRequest) -> Problem | None:
    if not request.get("data_parallel_multi_port_external_lb"):
        return None
    local = request.get("data_parallel_size_local") or 0
    if request.data_parallel >= 2 and local >= 2 and request.data_parallel % local == 0:
        return None
    return Problem(
        "`--data-parallel-multi-port-external-lb` supervises several replicas on this host: "
        f"--data-parallel-size is {request.data_parallel}, --data-parallel-size-local {local}.",
        "Set --data-parallel-size-local to 2 or more, and --data-parallel-size to a multiple.",
    )


@BOOK.rule(
    "multi-port-servers",
    "--data-parallel-multi-port-external-lb with more than one API server a replica, or with gRPC "
    "or a Unix socket",
    SUPERVISOR,
    '"--api-server-count=1"',
    "does not support --grpc",
)
def multi_port_servers(request: ServeRequest) -> Problem | None:
    if not request.get("data_parallel_multi_port_external_lb"):
        return None
    wrong = [name for name in ("grpc", "uds") if request.get(name)]
    if request.get("api_server_count") not in (None, 1):
        wrong.append("api-server-count")
    if not wrong:
        return None
    return Problem(
        "`--data-parallel-multi-port-external-lb` gives each replica one HTTP port, which does not "
        f"go with --{', --'.join(wrong)}.",
        "Leave that out.",
    )


@BOOK.rule(
    "fault-tolerance-balancer",
    "--enable-fault-tolerance without external load balancing",
    ARGS,
    "Fault tolerance requires external load balancer mode ",
    since="0.27.1",
)
def fault_tolerance_balancer(request: ServeRequest) -> Problem | None:
    if not request.get("enable_fault_tolerance") or request.external_balancer:
        return None
    return Problem(
        "`--enable-fault-tolerance` works only where each replica has an address of its own.",
        "Add --data-parallel-external-lb with --data-parallel-rank, or leave it out.",
    )


@BOOK.rule(
    "elastic-eplb",
    "--enable-elastic-ep without --enable-eplb",
    PARALLEL,
    "Elastic EP is only supported with enable_eplb=True.",
)
def elastic_eplb(request: ServeRequest) -> Problem | None:
    if not request.get("enable_elastic_ep") or request.get("enable_eplb"):
        return None
    return Problem(
        "`--enable-elastic-ep` moves experts between GPUs, and expert balancing is off.",
        "Add --enable-eplb.",
    )


@BOOK.rule(
    "elastic-pp",
    "--enable-elastic-ep with pipeline stages",
    PARALLEL,
    "Elastic EP is not supported with pipeline parallelism ",
)
def elastic_pp(request: ServeRequest) -> Problem | None:
    if not request.get("enable_elastic_ep") or request.pipeline_parallel <= 1:
        return None
    return Problem(
        f"`--enable-elastic-ep` does not work with {request.pipeline_parallel} pipeline stages.",
        "Set --pipeline-parallel-size 1, or leave out --enable-elastic-ep.",
    )


@BOOK.rule(
    "elastic-hybrid",
    "--enable-elastic-ep with hybrid load balancing",
    PARALLEL,
    "Elastic EP is not compatible with data_parallel_hybrid_lb",
    "or data_parallel_hybrid_lb. Elastic EP relies on a single API ",
)
def elastic_hybrid(request: ServeRequest) -> Problem | None:
    if not request.get("enable_elastic_ep") or not request.get("data_parallel_hybrid_lb"):
        return None
    return Problem(
        "`--enable-elastic-ep` has one API server, hybrid load balancing one on every host.",
        "Leave out one of the two.",
    )


@BOOK.rule(
    "elastic-external",
    "--enable-elastic-ep with external load balancing",
    PARALLEL,
    "Elastic EP is not compatible with data_parallel_external_lb ",
    until="0.32.0",
)
def elastic_external(request: ServeRequest) -> Problem | None:
    if not request.get("enable_elastic_ep") or not request.external_balancer:
        return None
    return Problem(
        "`--enable-elastic-ep` has one API server in this release, external load balancing one for "
        "every replica.",
        "Leave out one of the two, or take vLLM 0.33.0.",
    )


@BOOK.rule(
    "elastic-max-dp",
    "--elastic-ep-max-dp-size below --data-parallel-size",
    PARALLEL,
    "--elastic-ep-max-dp-size must be greater than or equal to ",
    since="0.32.0",
)
def elastic_max_dp(request: ServeRequest) -> Problem | None:
    most = request.get("elastic_ep_max_dp_size")
    if not request.get("enable_elastic_ep") or most is None or most >= request.data_parallel:
        return None
    return Problem(
        f"`--elastic-ep-max-dp-size {most}` is below --data-parallel-size {request.data_parallel}.",
        "Set it to the number of replicas that the cluster may grow to.",
    )
