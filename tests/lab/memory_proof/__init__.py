"""Tiny models with seeded weights, and real vLLM to hold the memory plan against."""
