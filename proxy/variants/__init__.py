"""Variants of a route side by side: who gets which, what is counted of them, and what that says."""
