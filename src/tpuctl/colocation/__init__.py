"""Where a bucket is in relation to a TPU, and what that costs."""
