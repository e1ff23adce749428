"""A certificate authority, the certificate of a SuperLink, and the keys of SuperNodes."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Certificates:
    """Where the files are that a SuperLink is started with; the others need `ca` alone."""

    ca: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Write the certificate of an authority of our own, and one of 127.0.0.1 that it signed."""
    ca_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name, server_name = named("test authority"), named("superlink")
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    ca = (
        certificate(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    # The address is in the certificate twice over: for the devices, and for the SuperLink's own
    # processes, which dial it as well.
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = (
        certificate(server_name, ca_name, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(signer, critical=False)
        .add_extension(address, critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    folder.mkdir(parents=True)
    files = Certificates(folder / "ca.crt", folder / "superlink.crt", folder / "superlink.key")
    files.ca.write_bytes(ca.public_bytes(Encoding.PEM))
    files.certificate.write_bytes(server.public_bytes(Encoding.PEM))
    write_secret(
        files.key,
        server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
    return files


def make_node_key(folder: Path) -> tuple[Path, Path]:
    """Write a key as ``ssh-keygen -t ecdsa -b 384`` does: the private file and the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / "node.key", folder / "node.key.pub"
    write_secret(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return private, public


def write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def usage(**granted: bool) -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: granted.get(name, False) for name in names})
