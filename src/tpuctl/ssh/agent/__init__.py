"""Programs that run on workers, under the Python installed there (3.8 or later), and how they are sent.

A program is a file of this package that imports only the standard library and other files of the package, whose text is sent
before its own. All of it goes through the stdin of ssh: no login shell interprets it, and nothing is installed. Every TPU VM
image has `/usr/bin/python3`, which cloud-init needs.
"""
