"""Copies to and from workers: one ssh session with a copy program per worker. An interrupted copy resumes."""
