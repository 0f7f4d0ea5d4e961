"""TLS for the API: what uvicorn is told, checked before it listens."""

from __future__ import annotations

import ssl
from typing import TypedDict

from kvready.advisor.settings import ApiSettings
from kvready.collectors.errors import SettingsError


class TlsOptions(TypedDict, total=False):
    """Options of uvicorn."""

    ssl_certfile: str
    ssl_keyfile: str | None
    ssl_ca_certs: str | None
    ssl_cert_reqs: int


def tls_options(settings: ApiSettings) -> TlsOptions:
    """What uvicorn needs; nothing for plain HTTP. Raises `SettingsError` that names the setting."""
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    authorities = settings.tls_client_ca_file
    if certificate is None:
        for name, value in (("tls_key_file", key), ("tls_client_ca_file", authorities)):
            if value is not None:
                raise SettingsError(f"api.{name} says nothing without api.tls_certificate_file")
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A key with a password would be asked for on the terminal; here it is refused.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"cannot use the certificate in {certificate}: {error}; check "
            "api.tls_certificate_file and api.tls_key_file, a key without a password"
        ) from None
    if authorities is not None:
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"cannot use the authorities in {authorities}: {error}; check "
                "api.tls_client_ca_file"
            ) from None
    return TlsOptions(
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key) if key else None,
        ssl_ca_certs=str(authorities) if authorities else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if authorities else ssl.CERT_NONE,
    )
