"""The policy chain: the only place that knows in which order policies are asked.

The laws: ``admit`` in list order; the first Reply stops; ``respond`` and ``settle`` run in reverse over every policy
that was asked (so a 429 still carries RateLimit fields); ``settle`` runs exactly once for each of them, whatever
happened.
"""
