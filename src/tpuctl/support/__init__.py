"""`tpuctl bundle`: collect the evidence that support would ask for in one file, without secrets and within limits.

`redaction` removes secrets from text, with the rules of `secret_forms` and `named_secrets`. `bundle_sources` collects from the
API and from workers, `bundle_contents` stores and packs, `bundle_manifest` explains. Start with `bundle`.
"""
