"""Code loaded inside an engine: standard library, msgspec, pyzmq and the engine itself."""
