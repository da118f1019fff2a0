"""A tiny model with fixed weights: the real architecture of large ones, made here in seconds."""
