"""HTTP/1.1 as the engine's endpoints see it: requests in, answers out. Knows no endpoint."""
