"""Every refusal and failure in one table: kind -> status, OpenAI type and code; and one function that words it.

An error has a kind, a message that says what happened, to what, and what to do, and where it helps a ``retry_after_s``.
The route's ``api`` decides the shape of the body: OpenAI, Open Inference Protocol, or RFC 9457 problem+json / HTML /
text by Accept.
"""
