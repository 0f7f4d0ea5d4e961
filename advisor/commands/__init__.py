"""The command line. Needs the sidecar extra; `kvready.advisor.cli` says so when it is missing."""
