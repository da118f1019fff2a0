"""GPU memory of a model in a layout, computed before anything is started.

Pure functions over frozen facts; nothing here reads a file or imports torch.
See docs/memory.md.
"""
