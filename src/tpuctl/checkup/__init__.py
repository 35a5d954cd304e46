"""The decisions of `doctor`: what is wrong here, with the credentials, the project, a node and its workers. Pure.

`catalogue` has all rules, and what they come to. `surroundings` is what is looked at on this machine and on the way to the
cloud, `node` a node as the API and the journal know it, `workers` what its workers tell of themselves. In each `facts` is what
was seen, and the other modules have the rules about it, by what they are about.
"""
