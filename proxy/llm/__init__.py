"""What the proxy understands of language models: requests, streams of events, tokens and usage."""
