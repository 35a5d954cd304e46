"""The room `commands`."""
