"""Movers loaded inside an engine."""
