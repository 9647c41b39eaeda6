"""Answers that are kept under a key of the client's, so that a request sent twice is carried out once."""
