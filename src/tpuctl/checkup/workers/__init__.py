"""What the workers of a node tell of themselves: `facts` is what they told, and the other modules judge it.

`saying` makes one finding of all workers that say the same.
"""
