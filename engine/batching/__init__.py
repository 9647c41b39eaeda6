"""Dynamic batching for any model: who shares a run, how long the first one waits, what a failed run means."""
