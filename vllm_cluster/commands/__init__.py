"""The subcommands of `vllm-cluster`, one file each, loaded when they are called."""
