"""The simulator held against a paper: claims, unknowns, runs, verdicts."""
