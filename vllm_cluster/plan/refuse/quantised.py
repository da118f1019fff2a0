"""Quantisation: of the checkpoint, by request, and on the GPUs at hand."""

from vllm_cluster.plan.refuse.request import ServeRequest
from vllm_cluster.plan.refuse.rule import Problem, RuleBook

BOOK = RuleBook()
MODEL = "vllm/config/model.py"
CONFIG = "vllm/config/vllm.py"
# Methods that read the same checkpoints (override_quantization_method of the released classes).
FAMILIES = (
    {"gptq", "auto_gptq", "gptq_marlin", "inc", "moe_wna16", "humming"},
    {"awq", "auto_awq", "awq_marlin", "inc", "moe_wna16", "humming"},
    {"fp8", "deepseek_v4_fp8", "humming"},
    {"mxfp4", "gpt_oss_mxfp4", "humming"},
    {"modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "humming"},
    {"compressed-tensors", "humming"},
    {"bitsandbytes"},
)


@BOOK.rule(
    "quantisation-unknown",
    "a quantisation method that does not exist",
    MODEL,
    "Unknown quantization method: ",
)
def quantisation_unknown(request: ServeRequest) -> Problem | None:
    method = request.quantisation
    methods = request.limits.quantisation["methods"]
    if method is None or method in methods:
        return None
    return Problem(
        f"vLLM {request.version} has no quantisation method {method}.",
        f"Take a checkpoint in one of {', '.join(methods)}.",
    )


@BOOK.rule(
    "quantisation-differs",
    "another quantisation method than the checkpoint has",
    MODEL,
    "does not match the quantization ",
)
def quantisation_differs(request: ServeRequest) -> Problem | None:
    asked = request.get("quantization")
    own = request.config.quantisation if request.config else None
    if asked is None or own is None or asked == own:
        return None
    if asked not in request.limits.quantisation["methods"]:
        return None
    families = [each for each in FAMILIES if own in each]
    if not families or any(asked in each for each in families):
        return None
    return Problem(
        f"The checkpoint is quantised with {own}, and `--quantization {asked}` asks for another.",
        "Leave out --quantization: the method is read from the checkpoint.",
    )


@BOOK.rule(
    "quantisation-deprecated",
    "a quantisation method that is to be removed",
    MODEL,
    '"The quantization method %s is deprecated "',
)
def quantisation_deprecated(request: ServeRequest) -> Problem | None:
    method = request.quantisation
    if method not in request.limits.quantisation["deprecated"]:
        return None
    if request.get("allow_deprecated_quantization"):
        return None
    return Problem(
        f"The quantisation method {method} is about to be removed from vLLM.",
        "Take another checkpoint, or add --allow-deprecated-quantization for now.",
    )


@BOOK.rule(
    "quantisation-gpu",
    "a quantisation method on GPUs that lack its instructions",
    CONFIG,
    "is not supported for the current GPU. Minimum ",
)
def quantisation_gpu(request: ServeRequest) -> Problem | None:
    method = request.limits.quantisation["methods"].get(request.quantisation) or {}
    least = method.get("min_capability")
    if least is None or request.capability is None or request.capability >= least:
        return None
    return Problem(
        f"Quantisation with {request.quantisation} needs GPUs of compute capability {least / 10}, "
        f"and these have {request.capability / 10}.",
        "Take a checkpoint that is quantised in another way, or other GPUs.",
    )


@BOOK.rule(
    "quantisation-dtype",
    "a quantisation method with a dtype that it does not compute in",
    CONFIG,
    "is not supported for quantization ",
)
def quantisation_dtype(request: ServeRequest) -> Problem | None:
    method = request.limits.quantisation["methods"].get(request.quantisation) or {}
    dtypes = method.get("dtypes")
    if not dtypes or request.dtype is None or request.dtype in dtypes:
        return None
    return Problem(
        f"Quantisation with {request.quantisation} does not compute in {request.dtype}.",
        f"Write --dtype {dtypes[0]}.",
    )
