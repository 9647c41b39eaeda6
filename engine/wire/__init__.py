"""The engine's APIs: request bodies to jobs, events to answers. One endpoint module per API."""
