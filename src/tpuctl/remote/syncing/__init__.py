"""Sync a folder to one worker: list its files, compare them with those of the worker, and send what differs.

`tree.py` lists the files, `contents.py` reads them, `visit.py` talks to the program on the worker (`onboard/tree.py`), which
compares, writes and deletes files, and `rsync.py` sends large amounts. `actions/sync.py` serves many workers.
"""
