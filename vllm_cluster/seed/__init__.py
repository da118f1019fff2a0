"""Seeds: what an installer, or a cloud image at its first boot, is told of one host."""
