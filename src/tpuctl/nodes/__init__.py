"""What a command does when it is more than one call."""
