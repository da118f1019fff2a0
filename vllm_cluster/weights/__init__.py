"""Model weights: what they are (manifest), whence they come (sources), how they spread (agent)."""
