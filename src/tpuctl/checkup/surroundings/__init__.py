"""This machine, its credentials, the way to the cloud, and the project: `facts` is what was seen, the others judge it."""
