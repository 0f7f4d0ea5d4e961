"""Who may ask, and who may change what: bearer tokens, each of one role.

Reading is open on loopback; beyond it a token is wanted, since answers about readiness tell one
tenant what another one's cache holds. Changing wants a token everywhere: an `operator` may make
policies do less, an `admin` may let them act.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import stat
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException

from kvready.advisor.settings import ADMIN_VARIABLE, OPERATOR_VARIABLE, ApiSettings
from kvready.collectors.errors import SettingsError

MIN_TOKEN_CHARACTERS = 16
MAX_TOKEN_BYTES = 4_096
SCHEME = "bearer "
OTHERS = stat.S_IRGRP | stat.S_IROTH
WWW_AUTHENTICATE = {"WWW-Authenticate": "Bearer"}

logger = logging.getLogger(__name__)


class Role(StrEnum):
    """What a token is good for; each includes the ones before it."""

    READER = "reader"  # to ask, where asking wants a token
    OPERATOR = "operator"  # to lower, pause and kill; to raise up to advise
    ADMIN = "admin"  # to let a policy act, to clear, to revive

    def includes(self, other: Role) -> bool:
        """Whether it may do what another one may."""
        return ROLES.index(self) >= ROLES.index(other)


ROLES = tuple(Role)


class Access:
    """Checks bearer tokens."""

    def __init__(self, settings: ApiSettings) -> None:
        """Raises `SettingsError` where a token is wanted but cannot be had."""
        self.is_wanted = (
            not is_loopback(settings.host)
            if settings.require_token is None
            else settings.require_token
        )
        self._roles = _roles(settings)
        if settings.require_token and not self._roles:
            raise SettingsError(
                "api.require_token is on but there is no token; name its file in api.token_file "
                "(--token-file)"
            )

    @property
    def takes_changes(self) -> bool:
        """Whether any token is good for a change."""
        return any(role.includes(Role.OPERATOR) for _, role in self._roles)

    def check(self, authorization: str | None) -> None:
        """Raises 401 or 403 for a caller who may not ask."""
        if not self.is_wanted:
            return
        if not self._roles:
            raise HTTPException(
                403,
                "beyond loopback this answers only who knows a token, and none is set: name its "
                "file in api.token_file (--token-file) and restart",
            )
        self._role(authorization)

    def check_change(self, authorization: str | None, least: Role) -> Role:
        """The caller's role. Raises 401 or 403 where it is less than `least`."""
        if not self.takes_changes:
            raise HTTPException(
                403,
                "nothing can be changed here, since no token for it is set: name its file in "
                "api.admin_token_file (--admin-token-file) and restart",
            )
        role = self._role(authorization)
        if not role.includes(least):
            raise HTTPException(403, f"this wants the token of an {least}; yours is of a {role}")
        return role

    def _role(self, authorization: str | None) -> Role:
        given = authorization or ""
        secret = given[len(SCHEME) :].strip() if given.lower().startswith(SCHEME) else ""
        digest = _digest(secret.encode("utf-8", "surrogateescape"))
        found: Role | None = None
        for known, role in self._roles:  # all of them, whichever fits: no time tells which
            if hmac.compare_digest(digest, known):
                found = role
        if found is None:
            raise HTTPException(
                401,
                "the bearer token is missing or wrong; send Authorization: Bearer TOKEN with what "
                "its file holds",
                WWW_AUTHENTICATE,
            )
        return found


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(settings: ApiSettings) -> None:
    """Raises `SettingsError` for an address beyond this machine where no token is set."""
    if not is_loopback(settings.host) and not _roles(settings):
        raise SettingsError(
            f"listening on {settings.host} would answer other machines, and no token is set; make "
            "one (openssl rand -hex 32 > FILE) and name it with --token-file to be asked, or with "
            "--operator-token-file or --admin-token-file to be commanded too; or stay on 127.0.0.1"
        )


def _roles(settings: ApiSettings) -> list[tuple[bytes, Role]]:
    """Digests, which are all of one length, with what they are good for."""
    given = [
        (Role.READER, read_token(settings.token_file, "api.token_file")),
        (Role.OPERATOR, read_token(settings.operator_token_file, "api.operator_token_file")),
        (Role.OPERATOR, _from_environment(OPERATOR_VARIABLE)),
        (Role.ADMIN, read_token(settings.admin_token_file, "api.admin_token_file")),
        (Role.ADMIN, _from_environment(ADMIN_VARIABLE)),
    ]
    roles: dict[bytes, Role] = {}
    for role, token in given:
        if token and roles.setdefault(_digest(token), role) is not role:
            raise SettingsError(
                f"one token is set for two roles, {roles[_digest(token)]} and {role}; make another"
            )
    return list(roles.items())


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()


def _from_environment(variable: str) -> bytes:
    token = os.environ.get(variable, "").strip().encode("utf-8", "surrogateescape")
    if token:
        _check_length(token, f"the variable {variable}")
    return token


def read_token(path: Path | None, setting: str) -> bytes:
    """The first line of a token's file; nothing where none is named. Raises `SettingsError`."""
    if path is None:
        return b""
    token = read_secret(path, setting, MAX_TOKEN_BYTES).split(b"\n", 1)[0].strip()
    _check_length(token, f"the first line of {path}")
    return token


def read_secret(path: Path, setting: str, most_bytes: int) -> bytes:
    """The start of a file that nobody else should read. Raises `SettingsError`."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(most_bytes)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}; check {setting}") from None
    if mode & OTHERS:
        logger.warning(
            "others may read the secret in %s (mode %03o); keep it to yourself with: chmod 600 %s",
            path,
            mode,
            path,
        )
    return content


def _check_length(token: bytes, where: str) -> None:
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise SettingsError(
            f"{where} is no token of at least {MIN_TOKEN_CHARACTERS} characters; make one, for "
            "example with `openssl rand -hex 32`"
        )
