"""The decisions of `doctor`: what is wrong with this machine, the credentials, the project, and the workers of a node. Pure."""
