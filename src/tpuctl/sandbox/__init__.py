"""The sandbox: a local Cloud TPU API that costs nothing.

It speaks the API's JSON and shares nothing with the client: its schema comes from Google's discovery documents, its
rules from what is known of the real service.
"""
