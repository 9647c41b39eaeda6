"""Upstreams: which server, on which connection, whether again. Pure decisions beside one strict HTTP/1.1 client."""
