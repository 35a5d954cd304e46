"""Create Google Cloud TPUs, keep them usable, and run programs on them."""

__version__ = "0.1.0"
