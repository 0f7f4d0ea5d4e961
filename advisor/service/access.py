"""Who may ask about readiness: its answers tell one tenant what another one's cache holds."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import stat
from pathlib import Path

from starlette.exceptions import HTTPException

from kvready.advisor.settings import ApiSettings
from kvready.collectors.errors import SettingsError

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_BYTES = 4_096
SCHEME = "bearer "
OTHERS = stat.S_IRGRP | stat.S_IROTH

logger = logging.getLogger(__name__)


class Access:
    """Checks the bearer token where one is wanted."""

    def __init__(self, settings: ApiSettings) -> None:
        """Raises `SettingsError` where the token is wanted but cannot be had."""
        self.is_wanted = (
            not is_loopback(settings.host)
            if settings.require_token is None
            else settings.require_token
        )
        self._token = _read(settings.token_file) if settings.token_file else b""
        if settings.require_token and not self._token:
            raise SettingsError(
                "api.require_token is on but there is no token; name its file in api.token_file "
                "(--token-file)"
            )

    def check(self, authorization: str | None) -> None:
        """Raises 401 or 403 for a caller who may not ask."""
        if not self.is_wanted:
            return
        if not self._token:
            raise HTTPException(
                403,
                "beyond loopback this answers only who knows a token, and none is set: name its "
                "file in api.token_file (--token-file) and restart",
            )
        given = authorization or ""
        secret = given[len(SCHEME) :].strip() if given.lower().startswith(SCHEME) else ""
        if not hmac.compare_digest(secret.encode("utf-8", "surrogateescape"), self._token):
            raise HTTPException(
                401,
                "the bearer token is missing or wrong; send Authorization: Bearer TOKEN with what "
                "api.token_file holds",
                {"WWW-Authenticate": "Bearer"},
            )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = file.read(MAX_TOKEN_BYTES).split(b"\n", 1)[0].strip()
    except OSError as error:
        raise SettingsError(
            f"cannot read the token in {path}: {error.strerror}; check api.token_file"
        ) from None
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise SettingsError(
            f"the first line of {path} is no token of at least {MIN_TOKEN_CHARACTERS} characters; "
            "make one, for example with `openssl rand -hex 32`"
        )
    if mode & OTHERS:
        logger.warning(
            "others may read the token in %s (mode %03o); keep it to yourself with: chmod 600 %s",
            path,
            mode,
            path,
        )
    return token
