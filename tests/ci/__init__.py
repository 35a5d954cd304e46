"""The files of CI systems, the action, the workflows and the container."""
