//! Keys and trust for TLS, with X.509 certificates.
//!
//! Files are PEM, and a directory holds them under the names that other NBD programs use:
//! `ca-cert.pem`, `server-cert.pem`, `server-key.pem`, `client-cert.pem`, `client-key.pem`. A
//! server with a `ca-cert.pem` demands a client certificate signed by it.
//! Left out: TLS with pre-shared keys (the `psk` of other NBD programs). rustls has no external
//! keys (its issue 174), and client certificates serve the same purpose.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};

/// Keys that cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TlsError {
    #[error("{}: {why}; expected PEM with {expected}", path.display())]
    File { path: PathBuf, expected: &'static str, why: String },
    #[error("TLS settings from {}: {why}", path.display())]
    Settings { path: PathBuf, why: String },
    #[error("{name:?} is no host name or address a certificate could be checked against; give tls-hostname=NAME")]
    ServerName { name: String },
}

/// A server's keys.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<ServerConfig>);

/// The certificates that a client trusts, and its own keys if the server demands them.
#[derive(Clone, Debug)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsServer {
    /// Reads the files of a directory under their usual names.
    pub fn from_directory(directory: &Path) -> Result<TlsServer, TlsError> {
        let ca = directory.join("ca-cert.pem");
        let client_ca = ca.exists().then_some(ca.as_path());
        TlsServer::from_files(&directory.join("server-cert.pem"), &directory.join("server-key.pem"), client_ca)
    }

    /// Reads a certificate and its key. With `client_ca`, clients must show a certificate signed by
    /// it.
    pub fn from_files(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<TlsServer, TlsError> {
        let provider = provider();
        let settings = |why: String| TlsError::Settings { path: certificate.to_path_buf(), why };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| settings(error.to_string()))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| settings(error.to_string()))?)
            }
        };
        let config = builder
            .with_single_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|error| settings(error.to_string()))?;
        Ok(TlsServer(Arc::new(config)))
    }

    pub(crate) fn session(&self) -> Result<Connection, rustls::Error> {
        Ok(Connection::Server(ServerConnection::new(self.0.clone())?))
    }
}

impl TlsClient {
    /// Reads the files of a directory under their usual names. The client's own are optional.
    pub fn from_directory(directory: &Path) -> Result<TlsClient, TlsError> {
        let (certificate, key) = (directory.join("client-cert.pem"), directory.join("client-key.pem"));
        let own = certificate.exists().then_some((certificate.as_path(), key.as_path()));
        TlsClient::from_files(&directory.join("ca-cert.pem"), own)
    }

    /// Trusts servers whose certificate `ca` signed, and shows `own` (certificate, key) to servers
    /// that ask.
    pub fn from_files(ca: &Path, own: Option<(&Path, &Path)>) -> Result<TlsClient, TlsError> {
        let settings = |why: String| TlsError::Settings { path: ca.to_path_buf(), why };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| settings(error.to_string()))?
            .with_root_certificates(roots(ca)?);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|error| settings(error.to_string()))?,
        };
        Ok(TlsClient(Arc::new(config)))
    }

    pub(crate) fn session(&self, server_name: &str) -> Result<Connection, TlsError> {
        let wrong = || TlsError::ServerName { name: server_name.to_string() };
        let name = ServerName::try_from(server_name.to_string()).map_err(|_| wrong())?;
        let session = ClientConnection::new(self.0.clone(), name).map_err(|_| wrong())?;
        Ok(Connection::Client(session))
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |why: String| TlsError::File { path: path.to_path_buf(), expected: "certificates", why };
    let read = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    let certificates: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    if certificates.is_empty() {
        return Err(wrong("no certificate in it".into()));
    }
    Ok(certificates)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let wrong = |why: String| TlsError::File { path: path.to_path_buf(), expected: "a private key", why };
    PrivateKeyDer::from_pem_file(path).map_err(|error| wrong(error.to_string()))
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|error| TlsError::Settings { path: path.to_path_buf(), why: error.to_string() })?;
    }
    Ok(roots)
}
