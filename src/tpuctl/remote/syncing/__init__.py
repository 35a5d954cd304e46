"""Bring a tree of files to a worker: what the tree holds, what differs there, and the way by which it goes.

`tree.py` lists the files, `contents.py` reads them, `visit.py` talks with the program on the worker (`onboard/tree.py`), which
compares, puts and deletes; `rsync.py` carries much. Nothing here knows of more than one worker: `actions/sync.py` does.
"""
