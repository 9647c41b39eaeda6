"""What all workers of the box know together: limits, permits and records, in one bounded mapping."""
