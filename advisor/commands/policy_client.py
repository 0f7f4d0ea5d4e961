"""Calls from the command line to a sidecar's policies."""

from __future__ import annotations

import getpass
import os
import ssl
import uuid
from pathlib import Path
from typing import Any

import httpx

from kvready.advisor.kill_switch import default_kill_file
from kvready.advisor.service.access import read_token
from kvready.advisor.settings import ADMIN_VARIABLE, OPERATOR_VARIABLE
from kvready.collectors.errors import ServiceError, SettingsError

CALL_SECONDS = 15.0
REFUSED = frozenset({409, 412})


class PolicyClient:
    """One sidecar, asked as one person."""

    def __init__(
        self,
        url: str,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        certificate_file: Path | None = None,
        key_file: Path | None = None,
    ) -> None:
        """Raises `SettingsError` for a file that cannot be used."""
        self._url = url.rstrip("/")
        token = read_token(token_file, "--token-file").decode("utf-8", "surrogateescape")
        token = token or os.environ.get(ADMIN_VARIABLE, "") or os.environ.get(OPERATOR_VARIABLE, "")
        headers = {"authorization": f"Bearer {token.strip()}"} if token else {}
        self._headers = headers
        self._tls = _verified(ca_file, certificate_file, key_file)

    def get(self, path: str, **query: object) -> Any:
        """A document. Raises `ServiceError`."""
        answer = self._call("GET", path, params={k: v for k, v in query.items() if v is not None})
        return self._document(answer)

    def change(
        self, method: str, path: str, body: dict[str, object], revision: int | None = None
    ) -> tuple[bool, Any]:
        """Whether it was done, and the document. Raises `ServiceError` for all but refusals."""
        headers = {
            "idempotency-key": uuid.uuid4().hex,
            "if-match": "*" if revision is None else f'"{revision}"',
        }
        answer = self._call(method, path, json={"actor": _user()} | body, headers=headers)
        if answer.status_code in REFUSED:
            return False, answer.json()
        return True, self._document(answer)

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        # A sidecar is not behind the shell's proxy.
        client = httpx.Client(
            headers=self._headers, timeout=CALL_SECONDS, trust_env=False, verify=self._tls
        )
        try:
            with client:
                return client.request(method, self._url + path, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServiceError(
                f"{self._url} does not answer ({error}); name the sidecar with --url. To switch "
                f"every policy off without it, on its host: touch {default_kill_file()}"
            ) from None

    def _document(self, answer: httpx.Response) -> Any:
        try:
            document = answer.json()
        except ValueError:
            raise ServiceError(f"{self._url} is no kvready: it answers no JSON") from None
        if answer.status_code == 401:
            raise ServiceError(
                f"{document.get('detail', 'the token is wrong')}: name it with --token-file, or "
                f"in {ADMIN_VARIABLE} or {OPERATOR_VARIABLE}"
            )
        if answer.status_code != 200:
            detail = document.get("detail") if isinstance(document, dict) else None
            raise ServiceError(f"{detail or f'status {answer.status_code}'} ({self._url})")
        return document


def _verified(
    ca_file: Path | None, certificate_file: Path | None, key_file: Path | None
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate_file is not None:
            context.load_cert_chain(certificate_file, key_file)
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot use --ca-file, --certificate or --key: {error}") from None
    return context


def _user() -> str:
    try:
        return getpass.getuser()[:64]
    except (OSError, KeyError):
        return ""
