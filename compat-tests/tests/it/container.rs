//! The image, in a container of Docker's engine: reached by a real client, looked after by its own health check, and over a restart.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rangeway_compat_tests::suite::on_path;
use rangeway_compat_tests::{ports, skip};
use testcontainers::core::{ExecCommand, IntoContainerPort, WaitFor};
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, GenericImage, ImageExt};

const PORT_INSIDE: u16 = 9092;
const RECORDS: usize = 2000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Name of the image: `RANGEWAY_IMAGE`, or `rangeway`.
fn image() -> String {
    std::env::var("RANGEWAY_IMAGE").unwrap_or_else(|_| "rangeway".to_owned())
}

/// What is missing for the test, and the line that installs it.
fn missing() -> Option<(&'static str, &'static str)> {
    let docker = |arguments: &[&str]| {
        let done =
            Command::new("docker").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    };
    if !docker(&["version"]) {
        return Some(("no Docker engine answers", "apt-get install docker.io && service docker start"));
    }
    if !docker(&["image", "inspect", &image()]) {
        return Some(("the image is not built", "docker/build"));
    }
    (!on_path("kcat")).then_some(("no kcat on the path", "compat-tests/install kcat"))
}

#[test]
fn the_image_serves_clients_and_keeps_what_it_acknowledged() {
    if let Some((missing, install)) = missing() {
        return skip::announce("docker", missing, install);
    }
    let port = ports::free().unwrap();
    let address = format!("127.0.0.1:{port}");
    let container = GenericImage::new(image(), "latest".to_owned())
        .with_wait_for(WaitFor::message_on_stdout("rangeway ready "))
        .with_mapped_port(port, PORT_INSIDE.tcp())
        .with_cmd(["serve", "--advertise", &address])
        .with_startup_timeout(PATIENCE)
        .start()
        .unwrap();

    let records: String = (0..RECORDS).map(|n| format!("key-{}:value {n}\n", n % 7)).collect();
    kcat(&address, &["-P", "-t", "numbers", "-p", "3", "-K:", "-X", "enable.idempotence=true"], &records);
    assert_eq!(read(&address), records);
    health(&container);

    container.stop().unwrap();
    assert_eq!(container.exit_code().unwrap(), Some(0), "a stop is a clean end");
    container.start().unwrap();
    let began = Instant::now();
    while !answers(&address) {
        assert!(began.elapsed() < PATIENCE, "not ready after the restart");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(read(&address), records, "what was acknowledged is there after a restart");
    health(&container);
}

/// The command of the image's health check, in the container.
fn health(container: &Container<GenericImage>) {
    let mut check = container.exec(ExecCommand::new(["rangeway", "cluster", "status"])).unwrap();
    let said = String::from_utf8(check.stdout_to_vec().unwrap()).unwrap();
    assert_eq!(check.exit_code().unwrap(), Some(0), "{said}");
}

fn answers(address: &str) -> bool {
    let asked = Command::new("kcat").args(["-b", address, "-L", "-m", "2"]).output().unwrap();
    asked.status.success()
}

fn read(address: &str) -> String {
    kcat(address, &["-C", "-t", "numbers", "-p", "3", "-o", "beginning", "-e", "-q", "-f", "%k:%s\\n"], "")
}

/// What kcat says, given `input`.
fn kcat(address: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("timeout")
        .args([&PATIENCE.as_secs().to_string(), "kcat", "-b", address])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // kcat reads all of its input before it writes anything.
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "kcat {arguments:?} ended with {}", done.status);
    String::from_utf8(done.stdout).unwrap()
}
