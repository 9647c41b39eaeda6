"""Models that take tensors and give tensors: any ONNX graph, batched along its first axis."""
