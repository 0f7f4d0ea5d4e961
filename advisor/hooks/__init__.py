"""What acts inside an engine, while the sidecar says so. Standard library, msgspec and pyzmq."""
