"""What a model's own configuration allows."""

from vllm_cluster.plan.refuse.request import ServeRequest
from vllm_cluster.plan.refuse.rule import Problem, RuleBook

BOOK = RuleBook()
MODEL = "vllm/config/model.py"
CONFIG = "vllm/config/vllm.py"
REGISTRY = "vllm/model_executor/models/registry.py"


@BOOK.rule(
    "model-removed",
    "a model that is no longer in vLLM",
    REGISTRY,
    "_PREVIOUSLY_SUPPORTED_MODELS = {",
    "is not supported anymore. ",
)
def model_removed(request: ServeRequest) -> Problem | None:
    for name in request.config.architectures if request.config else ():
        if last := request.limits.models["removed"].get(name):
            return Problem(
                f"{name} is not in vLLM {request.version}; the last release with it is {last}.",
                "Take another model: a release that old has none of what this project relies on.",
            )
        if address := request.limits.models["plugins"].get(name):
            return Problem(
                f"{name} is not in vLLM itself but in a plugin: {address}.",
                "Install the plugin in the image, or take another model.",
            )
    return None


@BOOK.rule(
    "context-above-model",
    "--max-model-len above what the model was made for",
    MODEL,
    "User-specified max_model_len (",
)
def context_above_model(request: ServeRequest) -> Problem | None:
    longest = request.config.longest if request.config else None
    asked = request.get("max_model_len")
    if longest is None or asked in (None, -1) or asked <= longest:
        return None
    if request.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") in ("1", "true", "True"):
        return None
    return Problem(
        f"`--max-model-len {asked}` is above the {longest} tokens that the model was made for; "
        "beyond them its answers are noise.",
        f"Set --max-model-len to {longest} or less. If the model's card describes a RoPE scaling, "
        "put that into its configuration with --hf-overrides.",
    )


@BOOK.rule(
    "float16-model",
    "--dtype float16 for a model that is unstable in it",
    MODEL,
    "does not support float16. Reason: ",
)
def float16_model(request: ServeRequest) -> Problem | None:
    if request.model is None or request.get("dtype") not in ("float16", "half"):
        return None
    kind = request.model.get("model_type")
    if kind not in request.limits.no_float16:
        return None
    return Problem(
        f"Models of the type {kind} are numerically unstable in float16.",
        "Write --dtype bfloat16.",
    )


@BOOK.rule(
    "bfloat16-gpu",
    "--dtype bfloat16 on GPUs before Ampere",
    "vllm/platforms/cuda.py",
    "Bfloat16 is only supported on GPUs ",
)
def bfloat16_gpu(request: ServeRequest) -> Problem | None:
    if request.get("dtype") != "bfloat16" or request.capability is None or request.capability >= 80:
        return None
    return Problem(
        f"GPUs of compute capability {request.capability / 10} do not compute in bfloat16; that "
        "begins with 8.0.",
        "Write --dtype half.",
    )


@BOOK.rule(
    "kv-dtype-unknown",
    "a KV cache dtype that does not exist",
    "vllm/config/cache.py",
    "Invalid kv_cache_dtype: ",
    since="0.33.0",
)
def kv_dtype_unknown(request: ServeRequest) -> Problem | None:
    dtype = request.get("kv_cache_dtype") or "auto"
    if dtype in request.limits.kv_cache_dtypes:
        return None
    return Problem(
        f"`--kv-cache-dtype {dtype}` does not exist.",
        f"Take one of {', '.join(request.limits.kv_cache_dtypes)}.",
    )


@BOOK.rule(
    "kv-dtype-differs",
    "a 16-bit KV cache of another dtype than the model",
    CONFIG,
    'kv_cache_dtype="{cache_dtype}" is incompatible with ',
    since="0.33.0",
)
def kv_dtype_differs(request: ServeRequest) -> Problem | None:
    dtype = request.get("kv_cache_dtype")
    if dtype not in ("float16", "bfloat16") or request.dtype in (None, dtype):
        return None
    return Problem(
        f"`--kv-cache-dtype {dtype}` does not go with a model that computes in {request.dtype}.",
        "Leave it out: auto takes the model's own.",
    )


@BOOK.rule(
    "kv-nvfp4-latent",
    "an nvfp4 KV cache for a model with a latent one (MLA)",
    CONFIG,
    "nvfp4 KV cache is not supported with MLA ",
)
def kv_nvfp4_latent(request: ServeRequest) -> Problem | None:
    dtype = str(request.get("kv_cache_dtype") or "auto")
    if request.config is None or not request.config.latent:
        return None
    if not dtype.startswith("nvfp4") or dtype.endswith("_ds_mla"):
        return None
    return Problem(
        f"`--kv-cache-dtype {dtype}` does not work with a latent KV cache (MLA).",
        "Write --kv-cache-dtype fp8, or leave it out.",
    )


@BOOK.rule(
    "mamba-block-prefix",
    "--mamba-block-size without prefix caching",
    CONFIG,
    "--mamba-block-size can only be set with --enable-prefix-caching",
)
def mamba_block_prefix(request: ServeRequest) -> Problem | None:
    size = request.get("mamba_block_size")
    if size is None or request.get("enable_prefix_caching") is not False:
        return None
    if size == request.get("max_model_len"):
        return None
    return Problem(
        "`--mamba-block-size` is the size of what prefix caching keeps, and that is switched off.",
        "Leave out one of the two.",
    )


@BOOK.rule(
    "lora-model",
    "LoRA for a model whose class has no support for it",
    "vllm/v1/worker/lora_model_runner_mixin.py",
    "does not support LoRA yet.",
)
def lora_model(request: ServeRequest) -> Problem | None:
    if request.config is None or not request.get("enable_lora"):
        return None
    without = [
        name for name in request.config.architectures if name in request.limits.models["no_lora"]
    ]
    if not without:
        return None
    return Problem(
        f"{without[0]} takes no LoRA adapters in vLLM {request.version}.",
        "Merge the adapter into the weights, or take another model.",
    )


def _backend(request: ServeRequest) -> str | None:
    asked = request.get("attention_backend") or request.part("attention_config", "backend")
    return asked.upper() if isinstance(asked, str) else None


def _attention(request: ServeRequest) -> tuple[str, dict[str, list[object]]] | None:
    """The attention backend that is asked for, with what it works with."""
    name = _backend(request)
    known = request.limits.attention.get(name) if name else None
    return (name, dict(known)) if name and known else None


@BOOK.rule(
    "attention-gpu",
    "an attention backend on GPUs that it is not for",
    "vllm/v1/attention/backend.py",
    '"compute capability not supported"',
)
def attention_gpu(request: ServeRequest) -> Problem | None:
    found = _attention(request)
    if found is None or request.capability is None:
        return None
    name, known = found
    capabilities = [each for each in known["capabilities"] if isinstance(each, int)]
    if request.capability in capabilities:
        return None
    return Problem(
        f"The attention backend {name} does not work on GPUs of compute capability "
        f"{request.capability / 10}; it does on "
        f"{', '.join(str(each / 10) for each in capabilities) or 'none of NVIDIA'}.",
        "Leave it out: vLLM takes the best that works.",
    )


@BOOK.rule(
    "attention-kv-dtype",
    "an attention backend with a KV cache dtype that it does not read",
    "vllm/v1/attention/backend.py",
    '"kv_cache_dtype not supported"',
)
def attention_kv_dtype(request: ServeRequest) -> Problem | None:
    found = _attention(request)
    dtype = request.get("kv_cache_dtype") or "auto"
    if found is None or dtype in ("auto", "float16", "bfloat16"):
        return None
    name, known = found
    if not known["kv_cache_dtypes"] or dtype in known["kv_cache_dtypes"]:
        return None
    return Problem(
        f"The attention backend {name} does not read a KV cache in {dtype}.",
        f"Leave out the backend, or take one of {', '.join(map(str, known['kv_cache_dtypes']))}.",
    )
