"""Bounds and searches: how far a policy is from the best schedule."""
