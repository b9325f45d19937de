"""Certificates for tests, made by the openssl of this machine. They name 127.0.0.1."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A certificate that trusts itself.

    Attributes:
        path: PEM file of the certificate.
        key: PEM file of its key, not encrypted.
        both: PEM file of the key and the certificate, as Java keeps them.
    """

    path: Path
    key: Path
    both: Path

    @property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def key_text(self) -> str:
        return self.key.read_text()

    def encrypted_key(self, password: str) -> str:
        """Return the key as PKCS#8, encrypted."""
        return openssl("pkcs8", "-topk8", "-in", self.key, "-passout", f"pass:{password}")

    def pkcs12(self, password: str) -> Path:
        """Return a new PKCS#12 store of both."""
        path = self.path.with_suffix(".p12")
        command = ["-export", "-in", self.path, "-inkey", self.key, "-out", path]
        openssl("pkcs12", *command, "-passout", f"pass:{password}")
        return path


def self_signed(folder: Path, name: str) -> Certificate:
    """Make a certificate for 127.0.0.1, with the name as its subject."""
    made = Certificate(*(folder / f"{name}{end}" for end in (".pem", ".key", "-store.pem")))
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", made.key, "-out", made.path]
    openssl("req", "-x509", "-days", "2", *curve, *names, *files)
    made.both.write_text(made.key_text + made.text)
    return made


def openssl(*arguments: str | Path) -> str:
    command = ["openssl", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
