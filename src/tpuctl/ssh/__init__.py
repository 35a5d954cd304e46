"""Connections to workers: ssh keys, routes, and the arguments of OpenSSH's programs. Makes no API calls."""
