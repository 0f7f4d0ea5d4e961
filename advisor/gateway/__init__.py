"""A reverse proxy in front of the engine that holds followers of a prefix being computed."""
