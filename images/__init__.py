"""Container images of the cluster: one for GPUs (a Dockerfile), one for CPUs (built here)."""
