"""Proofs of who we are. Time and nonce are arguments; the password is used here and kept nowhere.

Formats: TStringUtils.getAuthSignature for masters; for brokers the same four parts in one text.
"""

import base64
import hashlib
import hmac
import urllib.parse

from tubemq_spark.protocol.pb import common_pb2


def sign(user: str, password: str, timestamp_ms: int, nonce: int) -> str:
    """Return ``urlEncode(base64(HMAC-SHA1(password, user + timestamp + nonce)))``.

    The nonce is from 0 to 2**31 - 2. Masters refuse a timestamp that is 20 s off their own clock.
    """
    # SHA-1 is what TubeMQ's servers compare; as a keyed hash it is not broken.
    digest = hmac.new(password.encode(), f"{user}{timestamp_ms}{nonce}".encode(), hashlib.sha1).digest()
    return urllib.parse.quote(base64.b64encode(digest), safe="")  # form encoding: %2B %2F %3D


def authenticate_info(user: str, password: str, timestamp_ms: int, nonce: int) -> common_pb2.AuthenticateInfo:
    """Return the proof for a master, signed as ``sign`` does."""
    return common_pb2.AuthenticateInfo(
        userName=user,  # AuthenticateInfo (1): all five fields are required
        timestamp=timestamp_ms,
        nonce=nonce,
        othParams="",  # required; Java sends it empty, too
        signature=sign(user, password, timestamp_ms, nonce),
    )


def broker_token(user: str, password: str, timestamp_ms: int, nonce: int) -> str:
    """Return the proof for a broker: ``user timestamp nonce signature``, for authAuthorizedToken."""
    return f"{user} {timestamp_ms} {nonce} {sign(user, password, timestamp_ms, nonce)}"
