"""vLLM platform plugin: CPU workers that Ray places as if each were a GPU.

vLLM's own CPU platform refuses Ray ("current platform cpu does not support ray"), because it
names no resource by which Ray could count its devices. vLLM finds this package by the entry point
group ``vllm.platform_plugins`` and prefers it to what it carries itself.
Start Ray with ``--num-gpus N`` for N workers on that host.
"""


def register() -> str:
    """Return the platform class that vLLM shall use."""
    return "ray_cpu_platform.platform.RayCpuPlatform"
