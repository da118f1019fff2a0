"""How many requests and tokens run at once."""

from vllm_cluster.plan.refuse.request import ServeRequest
from vllm_cluster.plan.refuse.rule import Problem, RuleBook

BOOK = RuleBook()
SCHEDULER = "vllm/config/scheduler.py"
CONFIG = "vllm/config/vllm.py"


def context(request: ServeRequest) -> int | None:
    """The longest context that will be served, in tokens, None where it cannot be told."""
    asked = request.get("max_model_len")
    if asked is not None and asked != -1:
        return int(asked)
    return request.config.longest if request.config else None


@BOOK.rule(
    "batch-below-context",
    "--max-num-batched-tokens below the context, without chunked prefill",
    SCHEDULER,
    "smaller than max_model_len (",
)
def batch_below_context(request: ServeRequest) -> Problem | None:
    tokens = request.get("max_num_batched_tokens")
    longest = context(request)
    if request.get("enable_chunked_prefill") is not False or tokens is None or longest is None:
        return None
    if tokens >= longest:
        return None
    return Problem(
        f"Without chunked prefill a prompt must fit one step: `--max-num-batched-tokens {tokens}` "
        f"is below the context of {longest} tokens.",
        f"Leave out --no-enable-chunked-prefill, or set --max-num-batched-tokens to {longest}, or "
        "--max-model-len lower.",
    )


@BOOK.rule(
    "batch-below-requests",
    "--max-num-batched-tokens below --max-num-seqs",
    SCHEDULER,
    "be greater than or equal to max_num_seqs ",
)
def batch_below_requests(request: ServeRequest) -> Problem | None:
    tokens = request.get("max_num_batched_tokens")
    requests = request.get("max_num_seqs")
    if tokens is None or requests is None or tokens >= requests:
        return None
    return Problem(
        f"Each running request takes a token a step: `--max-num-batched-tokens {tokens}` is below "
        f"`--max-num-seqs {requests}`.",
        f"Set --max-num-batched-tokens to {requests} or more, usually 2048 or more.",
    )


@BOOK.rule(
    "active-above-requests",
    "--max-num-active-seqs above --max-num-seqs",
    SCHEDULER,
    "max_num_active_seqs ({self.max_num_active_seqs}) cannot be ",
    since="0.32.0",
)
def active_above_requests(request: ServeRequest) -> Problem | None:
    active = request.get("max_num_active_seqs")
    requests = request.get("max_num_seqs")
    if active is None or requests is None or active <= requests:
        return None
    return Problem(
        f"`--max-num-active-seqs {active}` is above `--max-num-seqs {requests}`.",
        "Lower the one or raise the other.",
    )


@BOOK.rule(
    "long-prompt-threshold",
    "--long-prefill-token-threshold above the context",
    SCHEDULER,
    "({self.long_prefill_token_threshold}) cannot be greater ",
)
def long_prompt_threshold(request: ServeRequest) -> Problem | None:
    threshold = request.get("long_prefill_token_threshold") or 0
    longest = context(request)
    if request.version == "0.26.0" and (request.get("max_num_partial_prefills") or 1) <= 1:
        return None  # that release looks at the threshold only with several prompts in parts
    if longest is None or threshold <= longest:
        return None
    return Problem(
        f"`--long-prefill-token-threshold {threshold}` is above the context of {longest} tokens: "
        "no prompt can be long.",
        f"Set it below {longest}.",
    )


@BOOK.rule(
    "partial-prefills-chunked",
    "several prompts in parts at once, without chunked prefill",
    SCHEDULER,
    '"max_num_partial_prefills > 1."',
    until="0.26.0",
)
def partial_prefills_chunked(request: ServeRequest) -> Problem | None:
    parts = request.get("max_num_partial_prefills") or 1
    if parts <= 1 or request.get("enable_chunked_prefill") is not False:
        return None
    return Problem(
        f"`--max-num-partial-prefills {parts}` processes prompts in parts, which "
        "--no-enable-chunked-prefill forbids.",
        "Leave out one of the two.",
    )


@BOOK.rule(
    "partial-prefills-long",
    "more long prompts in parts at once than prompts in parts at all",
    SCHEDULER,
    "{self.max_long_partial_prefills=} must be less than or equal to ",
    until="0.26.0",
)
def partial_prefills_long(request: ServeRequest) -> Problem | None:
    parts = request.get("max_num_partial_prefills") or 1
    long = request.get("max_long_partial_prefills") or 1
    if long <= parts:
        return None
    return Problem(
        f"`--max-long-partial-prefills {long}` is above --max-num-partial-prefills {parts}.",
        "Lower the one or raise the other.",
    )


@BOOK.rule(
    "async-speculative",
    "--async-scheduling with a draft that the processor makes",
    CONFIG,
    "with EAGLE/MTP/Draft Model/NGram GPU",
    until="0.32.0",
)
def async_speculative(request: ServeRequest) -> Problem | None:
    method = request.part("speculative_config", "method")
    if request.get("async_scheduling") is not True or method is None:
        return None
    able = {*request.limits.speculative_eagle, "ngram_gpu", "draft_model", "dspark"}
    if request.version.startswith("0.32"):
        able.add("dflash")
    if method in able:
        return None
    return Problem(
        f"`--async-scheduling` does not work with speculative decoding by {method}.",
        "Leave out --async-scheduling: vLLM switches it on where it works.",
    )


@BOOK.rule(
    "async-padded",
    "--async-scheduling with disable_padded_drafter_batch",
    CONFIG,
    'disable_padded_drafter_batch=True."',
    until="0.32.0",
)
def async_padded(request: ServeRequest) -> Problem | None:
    unpadded = request.part("speculative_config", "disable_padded_drafter_batch")
    if request.get("async_scheduling") is not True or not unpadded:
        return None
    return Problem(
        "`--async-scheduling` needs padded draft batches.",
        "Leave out disable_padded_drafter_batch, or --async-scheduling.",
    )


@BOOK.rule(
    "async-old-ray",
    "--async-scheduling with the first Ray executor",
    "vllm/v1/executor/ray_executor.py",
    "class RayDistributedExecutor(",
    "` does not support async scheduling yet.",
    until="0.32.0",
)
def async_old_ray(request: ServeRequest) -> Problem | None:
    first = request.environment.get("VLLM_USE_RAY_V2_EXECUTOR_BACKEND") == "0"
    if request.backend != "ray" or not first or request.get("async_scheduling") is not True:
        return None
    return Problem(
        "`--async-scheduling` needs the second Ray executor, and "
        "VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0 selects the first.",
        "Leave out the variable.",
    )
