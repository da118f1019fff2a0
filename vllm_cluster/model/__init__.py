"""Facts of a model, read without its weights: from a directory or from the hub.

All reading of files and all network of the memory plan is here; what is read
goes as plain facts to `vllm_cluster.plan.memory`.
"""
