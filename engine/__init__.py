"""The local engine: models on ONNX Runtime behind plain HTTP on a unix socket. Imports neither the proxy nor the appliance."""
