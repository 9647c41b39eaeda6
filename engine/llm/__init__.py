"""The language model: scheduler, decoder, sampler, text. One file, decoder.py, knows the runtime."""
