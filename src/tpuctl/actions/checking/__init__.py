"""Checks before money is spent: gather facts in parallel, evaluate the rules of `preflight`, apply safe fixes."""
