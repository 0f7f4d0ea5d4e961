"""Taps: what the engine did, turned into records."""
