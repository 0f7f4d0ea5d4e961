"""The sidecar process: taps in, one ingest thread, a read-only API out."""
