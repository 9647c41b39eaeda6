"""Peers side by side, one machine, one run: see bench/README.md."""
