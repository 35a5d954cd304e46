"""The typed clients of Google's APIs. Nothing above this package knows a URL, a discovery document or an API version."""
