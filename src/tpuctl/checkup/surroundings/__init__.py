"""Rules about this machine, its credentials, its network and the project."""
