"""How good the predictions are: a recording replayed, scored, and held against rivals."""
