"""The curves of key exchange: those that Mozilla's "intermediate" names, on Pythons that can choose only one.

``ssl.SSLContext`` gets ``set_groups`` in Python 3.15. Before that OpenSSL is told by the way it reads its own
configuration file, for all contexts of the process that are made afterwards. Where that way is closed, OpenSSL's own
choice stays: X448 and P-521 besides, slow but not weak.
"""

from __future__ import annotations

import ctypes
import logging
import os
import ssl
from functools import cache

log = logging.getLogger("headrace.proxy")

_CURVES = "X25519:P-256:P-384"
if ssl.OPENSSL_VERSION_INFO >= (3, 5):
    _CURVES = "X25519MLKEM768:" + _CURVES  # safe from the quantum computers of the day after tomorrow
_CONFIGURATION = f"""
openssl_conf = parts
[parts]
ssl_conf = applications
[applications]
system_default = everything
[everything]
MinProtocol = TLSv1.2
Groups = {_CURVES}
"""


@cache
def limit_curves() -> bool:
    """Have contexts that are made from now on use these curves alone. False: they will use OpenSSL's."""
    try:
        import _ssl

        load = ctypes.CDLL(_ssl.__file__).CONF_modules_load_file
    except (ImportError, AttributeError, OSError):  # OpenSSL is part of the interpreter, or hides
        log.info("OpenSSL's own choice of curves is in use: this Python has no way to another")
        return False
    load.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong)
    load.restype = ctypes.c_int
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # OpenSSL reads the system's file at its first use: ours comes second
    descriptor = os.memfd_create("headrace-openssl", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, _CONFIGURATION.encode())
        return int(load(f"/proc/self/fd/{descriptor}".encode(), None, 0)) > 0
    finally:
        os.close(descriptor)
