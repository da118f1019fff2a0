"""A host made again from nothing, from its seed to the fingerprint that it had."""
