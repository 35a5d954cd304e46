"""Errors worth another attempt."""

RETRIABLE = (
    "Socket closed",
    "failed to connect to all addresses",
    "Unable to find a context_id matching the specified one",
)


def is_retriable(text: str) -> bool:
    return any(part in text for part in RETRIABLE)
