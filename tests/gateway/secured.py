"""A gateway that demands to know who calls, and clients that show it."""

import hashlib

import grpc

from tests.gateway.running import PlainClient

TOKENS = {"reader": "token of reader", "writer": "token of writer", "operator": "token of operator"}


def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


def policy_text(*left_out, certificates=False):
    rights = {
        "reader": 'read = ["clicks"]\ngroup = ["reader*"]',
        "writer": 'write = ["clicks"]',
        "operator": 'operator = true\nread = ["*"]\ngroup = ["*"]',
    }
    clients = [
        f'[[clients]]\nname = "{name}"\ntoken_sha256 = "{digest(token)}"\n{rights[name]}\n'
        for name, token in TOKENS.items()
        if name not in left_out
    ]
    shown = '[[clients]]\nname = "shown"\ncertificate = ["DNS:shown.example.com"]\nread = "*"\n'
    return "".join(clients) + (shown if certificates else "")


class SecuredClient(PlainClient):
    """Speaks TLS; shows a token or a certificate, or nothing."""

    def __init__(self, address, authority, client_id="plain", token=None, pair=None):
        super().__init__(address, client_id)
        self.channel.close()
        shown = (None, None) if pair is None else (pair.key.read_bytes(), pair.cert.read_bytes())
        credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes(), *shown)
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.secure_channel(address, credentials, options)
        self.shown = () if token is None else (("authorization", token),)
