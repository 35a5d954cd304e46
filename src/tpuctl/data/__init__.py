"""Facts about the world, as YAML."""
