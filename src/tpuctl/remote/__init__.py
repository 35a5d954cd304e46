"""Reaching workers: ssh keys, and the argv of OpenSSH's programs. It makes no API call."""
