"""One model over several GPUs."""

from vllm_cluster.plan.refuse.request import ServeRequest
from vllm_cluster.plan.refuse.rule import Problem, RuleBook

BOOK = RuleBook()
PARALLEL = "vllm/config/parallel.py"
MODEL = "vllm/config/model.py"
CONFIG = "vllm/config/vllm.py"


@BOOK.rule(
    "tp-heads",
    "attention heads that tensor parallelism cannot share out",
    MODEL,
    "Total number of attention heads (",
)
def tp_heads(request: ServeRequest) -> Problem | None:
    heads = request.config.heads if request.config else None
    tp = request.tensor_parallel
    if not heads or heads % tp == 0:
        return None
    fitting = [size for size in range(1, heads + 1) if heads % size == 0 and size <= 64]
    return Problem(
        f"{heads} attention heads cannot be shared out over --tensor-parallel-size {tp}.",
        f"Take one of {', '.join(map(str, fitting))}.",
    )


@BOOK.rule(
    "pp-model",
    "pipeline stages of a model whose class has no support for them",
    MODEL,
    "Pipeline parallelism is not supported for this model. ",
)
def pp_model(request: ServeRequest) -> Problem | None:
    if request.config is None or request.pipeline_parallel <= 1:
        return None
    lacking = request.limits.models["no_pipeline"]
    without = [name for name in request.config.architectures if name in lacking]
    if not without:
        return None
    return Problem(
        f"{without[0]} cannot be cut into pipeline stages in vLLM {request.version}.",
        "Use tensor parallelism within one host, or replicas.",
    )


@BOOK.rule(
    "dcp-tp",
    "--decode-context-parallel-size that does not divide --tensor-parallel-size",
    PARALLEL,
    "must be divisible by dcp_size={dcp}.",
)
def dcp_tp(request: ServeRequest) -> Problem | None:
    dcp = request.get("decode_context_parallel_size") or 1
    prefill = request.get("prefill_context_parallel_size") or 1
    if prefill > 1 or request.tensor_parallel % dcp == 0:
        return None
    return Problem(
        f"--tensor-parallel-size {request.tensor_parallel} is no multiple of "
        f"--decode-context-parallel-size {dcp}, which uses the same GPUs.",
        "Take a divisor of --tensor-parallel-size.",
    )


@BOOK.rule(
    "dcp-pcp",
    "decode and prefill context parallelism of sizes that do not go together",
    PARALLEL,
    "When PCP is enabled, DCP must be disabled, span the PCP ",
)
def dcp_pcp(request: ServeRequest) -> Problem | None:
    dcp = request.get("decode_context_parallel_size") or 1
    prefill = request.get("prefill_context_parallel_size") or 1
    fitting = (1, prefill, request.tensor_parallel * prefill)
    if prefill == 1 or dcp in fitting:
        return None
    return Problem(
        f"--decode-context-parallel-size {dcp} does not go with "
        f"--prefill-context-parallel-size {prefill}.",
        f"Take one of {', '.join(map(str, sorted(set(fitting))))}.",
    )


@BOOK.rule(
    "pcp-dp",
    "prefill context parallelism with replicas",
    PARALLEL,
    "PCP does not support data parallelism yet.",
    until="0.27.1",
)
def pcp_dp(request: ServeRequest) -> Problem | None:
    prefill = request.get("prefill_context_parallel_size") or 1
    if prefill == 1 or request.data_parallel <= 1:
        return None
    return Problem(
        "Prefill context parallelism and replicas do not go together in this release.",
        "Leave out one of the two, or take vLLM 0.32.0.",
    )


@BOOK.rule(
    "dcp-a2a",
    "--dcp-comm-backend a2a without decode context parallelism",
    PARALLEL,
    "dcp_comm_backend='a2a' requires decode_context_parallel_size > 1.",
    until="0.27.1",
)
def dcp_a2a(request: ServeRequest) -> Problem | None:
    dcp = request.get("decode_context_parallel_size") or 1
    if request.get("dcp_comm_backend") != "a2a" or dcp > 1:
        return None
    return Problem(
        "`--dcp-comm-backend a2a` is for decode context parallelism, which is off.",
        "Leave it out, or set --decode-context-parallel-size.",
    )


def _dcp_of_grouped(request: ServeRequest) -> tuple[int, int, int] | None:
    """DCP size, heads and KV heads, where the rules for grouped attention apply."""
    dcp = request.get("decode_context_parallel_size") or 1
    config = request.config
    if dcp <= 1 or config is None or config.latent or not config.heads or not config.kv_heads:
        return None
    return dcp, config.heads, config.kv_heads


@BOOK.rule(
    "dcp-kv-heads",
    "decode context parallelism where tensor parallelism does not repeat KV heads",
    MODEL,
    "Decode context parallelism for GQA/MQA requires ",
    "must be greater ",
)
def dcp_kv_heads(request: ServeRequest) -> Problem | None:
    found = _dcp_of_grouped(request)
    if found is None or request.tensor_parallel > found[2]:
        return None
    return Problem(
        f"Decode context parallelism shares out repeated KV heads, and --tensor-parallel-size "
        f"{request.tensor_parallel} repeats none of {found[2]}.",
        f"Set --tensor-parallel-size above {found[2]}, or --decode-context-parallel-size 1.",
    )


@BOOK.rule(
    "dcp-most",
    "decode context parallelism over more GPUs than repeat a KV head",
    MODEL,
    "decode context parallel size must less than or equal to ",
    ") exceeds the maximum ",
)
def dcp_most(request: ServeRequest) -> Problem | None:
    found = _dcp_of_grouped(request)
    if found is None or request.tensor_parallel <= found[2]:
        return None
    dcp, _heads, kv_heads = found
    most = request.tensor_parallel // kv_heads
    if dcp <= most:
        return None
    return Problem(
        f"With {kv_heads} KV heads on {request.tensor_parallel} GPUs, "
        f"--decode-context-parallel-size can be {most} at most, not {dcp}.",
        f"Set it to {most} or less.",
    )


@BOOK.rule(
    "dcp-queries",
    "decode context parallelism that cannot share out the query heads of a KV head",
    MODEL,
    "The model's number of query heads per KV head ",
    "Total number of q per kv attn heads (",
)
def dcp_queries(request: ServeRequest) -> Problem | None:
    found = _dcp_of_grouped(request)
    if found is None or request.tensor_parallel <= found[2]:
        return None
    dcp, heads, kv_heads = found
    if dcp > request.tensor_parallel // kv_heads or (heads // kv_heads) % dcp == 0:
        return None
    return Problem(
        f"{heads // kv_heads} query heads per KV head cannot be shared out over "
        f"--decode-context-parallel-size {dcp}.",
        f"Take a divisor of {heads // kv_heads}.",
    )


@BOOK.rule(
    "ep-dense",
    "--enable-expert-parallel for a model without experts",
    MODEL,
    "Number of experts in the model must be greater than 0 ",
)
def ep_dense(request: ServeRequest) -> Problem | None:
    if not request.get("enable_expert_parallel"):
        return None
    if request.config is None or request.config.experts:
        return None
    return Problem(
        "`--enable-expert-parallel` is for models with experts, and this one has none.",
        "Leave it out.",
    )


@BOOK.rule(
    "eplb-ep",
    "--enable-eplb without --enable-expert-parallel",
    PARALLEL,
    "enable_expert_parallel must be True to use EPLB.",
)
def eplb_ep(request: ServeRequest) -> Problem | None:
    if not request.get("enable_eplb") or request.get("enable_expert_parallel"):
        return None
    return Problem(
        "`--enable-eplb` balances experts over GPUs, and they are not spread.",
        "Add --enable-expert-parallel.",
    )


@BOOK.rule(
    "eplb-sizes",
    "--enable-eplb on one GPU",
    PARALLEL,
    "EPLB requires tensor, prefill-context, or data parallelism, ",
)
def eplb_sizes(request: ServeRequest) -> Problem | None:
    prefill = request.get("prefill_context_parallel_size") or 1
    spread = request.tensor_parallel * prefill * request.data_parallel
    if not request.get("enable_eplb") or not request.get("enable_expert_parallel") or spread > 1:
        return None
    return Problem(
        "`--enable-eplb` needs more than one GPU to balance experts over (TP x DP is 1).",
        "Leave it out, or raise --tensor-parallel-size or --data-parallel-size.",
    )


@BOOK.rule(
    "eplb-redundant",
    "redundant experts without --enable-eplb",
    PARALLEL,
    "num_redundant_experts is set to ",
)
def eplb_redundant(request: ServeRequest) -> Problem | None:
    redundant = request.part("eplb_config", "num_redundant_experts")
    if not redundant or request.get("enable_eplb"):
        return None
    return Problem(
        f"{redundant} redundant experts are asked for, and expert balancing is off.",
        "Add --enable-eplb, or leave out num_redundant_experts.",
    )


@BOOK.rule(
    "routed-experts-pp",
    "--enable-return-routed-experts with pipeline stages",
    CONFIG,
    "--enable-return-routed-experts is incompatible with ",
)
def routed_experts_pp(request: ServeRequest) -> Problem | None:
    if not request.get("enable_return_routed_experts") or request.pipeline_parallel <= 1:
        return None
    return Problem(
        f"`--enable-return-routed-experts` does not work with {request.pipeline_parallel} pipeline "
        "stages.",
        "Set --pipeline-parallel-size 1, or leave it out.",
    )


@BOOK.rule(
    "hc-sp-pp",
    "--enable-hc-sp with pipeline stages",
    MODEL,
    "--enable-hc-sp requires PP=1",
    since="0.32.0",
)
def hc_sp_pp(request: ServeRequest) -> Problem | None:
    if not request.get("enable_hc_sp") or request.tensor_parallel <= 1:
        return None
    if request.pipeline_parallel <= 1:
        return None
    return Problem(
        f"`--enable-hc-sp` does not work with {request.pipeline_parallel} pipeline stages.",
        "Set --pipeline-parallel-size 1, or leave it out.",
    )


@BOOK.rule(
    "dbo-thresholds",
    "microbatches that may be smaller than one token",
    PARALLEL,
    "dbo_decode_token_threshold and dbo_prefill_token_threshold must ",
    since="0.32.0",
)
def dbo_thresholds(request: ServeRequest) -> Problem | None:
    size = request.get("ubatch_size") or 0
    if not request.get("enable_dbo") and size <= 1:
        return None
    batches = 2 if request.get("enable_dbo") else size
    names = ("dbo_decode_token_threshold", "dbo_prefill_token_threshold")
    least = min(int(request.get(name) or 0) for name in names)
    if least >= batches:
        return None
    return Problem(
        f"A batch of {least} tokens cannot be split into {batches} microbatches.",
        f"Set --dbo-decode-token-threshold and --dbo-prefill-token-threshold to {batches} or more.",
    )
