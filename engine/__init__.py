"""The local engine: models on ONNX Runtime behind HTTP on a unix socket. Imports neither proxy nor appliance."""
