"""The commands of ``headrace``, a file for each group. Heavy imports stand inside the functions that need them."""
