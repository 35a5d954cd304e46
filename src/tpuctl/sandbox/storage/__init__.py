"""Cloud Storage, JSON API v1: buckets with their policies and caches, and objects with their contents.

Objects are not versioned, and what was deleted is gone: no soft delete.
"""
