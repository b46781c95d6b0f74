"""`nodeclient page`: prints a link that opens the live page in a browser.

A browser has no token, so the coordinator gives a code that works once. It stands behind the `#` of the link, in the
part that a browser sends to no server.
"""

from __future__ import annotations

import sys
from hashlib import sha256

from coordinatord.protocol.exit_codes import ExitCode
from coordinatord.protocol.http.api import PageLinkAnswer, PageLinkBody
from nodeclient.config.operate import PageConfig
from nodeclient.operate.client import Client, read
from nodeclient.operate.terminal_info import write


def run(config: PageConfig) -> int:
    """Print only the link on standard output, and notes for the user on standard error."""
    client = Client(config.coordinators, config.access)
    link = read(PageLinkAnswer, client.post("/v1/page/link", PageLinkBody()))
    if client.certificate is None:  # a coordinator without TLS gives no code, since it lets everybody in
        write([f"http://{client.where}/"])
        return ExitCode.OK
    write([f"https://{client.where}/#enter={link.code}"])
    sys.stderr.write(
        f"The link works once, within {link.valid_s / 60:.0f} minutes, and may do what the token may ({link.role}).\n"
        "If the browser does not know the certificate, compare its SHA-256 fingerprint before you go on:\n"
        f"{sha256(client.certificate).digest().hex(':').upper()}\n"
    )
    return ExitCode.OK
