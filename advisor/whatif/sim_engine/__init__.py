"""A simulated engine behind vLLM's own surfaces: what the sidecar sees of it is labelled so."""
