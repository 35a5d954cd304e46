"""Programs of others on sandbox workers: JAX and Ray from PyPI. `make frameworks` installs them, and runs these tests."""
