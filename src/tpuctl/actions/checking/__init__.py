"""Checks before money is spent: gather facts side by side, let the rules of `preflight` judge, mend what is safe to mend."""
