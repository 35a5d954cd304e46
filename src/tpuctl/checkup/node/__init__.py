"""A node as the API and the journal know it: `facts` is what was seen, the others judge it."""
