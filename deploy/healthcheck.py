"""Says whether the coordinatord of this container answers and can record; Docker's HEALTHCHECK runs it."""

import os
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 2.0

CERTIFICATE_WANTED = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
"""What a coordinatord with --tls-client-ca answers without a certificate: it serves, and more cannot be asked."""


def healthy(port: str) -> bool:
    """Ask for /healthz, over TLS and then in the clear: a user may have switched TLS off."""
    # It is this very container, and nothing secret is sent: there is no key to compare.
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    for scheme in ("https", "http"):
        try:
            url = f"{scheme}://127.0.0.1:{port}/healthz"
            urllib.request.urlopen(url, timeout=TIMEOUT_S, context=trusting).close()  # noqa: S310 - https or http
        except urllib.error.HTTPError:
            return False
        except OSError as error:
            if CERTIFICATE_WANTED in str(error):
                return True
            continue
        return True
    return False


if __name__ == "__main__":
    sys.exit(not healthy(os.environ.get("COORDINATORD_PORT", "29400")))
