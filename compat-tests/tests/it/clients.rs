//! One test per foreign client: its program runs against a broker of its own and every expected line must be ok.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use rangeway_compat_tests::broker::installed;
use rangeway_compat_tests::{skip, suite};

fn on_path(program: &str) -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

#[test]
fn kcat_passes_its_lines() {
    if !on_path("kcat") {
        return skip::announce("kcat", "no kcat on the path", "compat-tests/install kcat");
    }
    let mut program = Command::new("bash");
    program.arg("suite.sh");
    suite::run("kcat", program).unwrap();
}

#[test]
fn confluent_kafka_passes_its_lines() {
    python("confluent-kafka");
}

#[test]
fn kafka_python_passes_its_lines() {
    python("kafka-python");
}

fn python(client: &str) {
    let python = installed().join(client).join("venv/bin/python");
    if !python.is_file() {
        let missing = format!("no {client} in {}", installed().display());
        return skip::announce(client, &missing, &format!("compat-tests/install {client}"));
    }
    let mut program = Command::new(python);
    program.args(["-u", "-B", "suite.py"]).env("PYTHONPATH", suite::folder("python"));
    suite::run(client, program).unwrap();
}

#[test]
fn the_java_client_and_its_console_tools_pass_their_lines() {
    let libs = installed().join("java/libs");
    if !on_path("javac") || !libs.is_dir() {
        let missing = "no Java 17 with javac, or no kafka-clients".to_owned();
        return skip::announce(
            "java",
            &missing,
            "apt-get install openjdk-17-jdk maven && compat-tests/install java",
        );
    }
    let classes = installed().join("java/classes");
    let class_path = compile(&libs, &classes);
    let mut program = Command::new("bash");
    program.arg("suite.sh").env("CLASSPATH", class_path);
    suite::run("java", program).unwrap();
}

/// Compiles the suite's source; answers the class path to run it with.
fn compile(libs: &Path, classes: &Path) -> String {
    let class_path = format!("{}:{}/*", classes.display(), libs.display());
    let done = Command::new("javac")
        .args(["-d".as_ref(), classes.as_os_str(), "-cp".as_ref(), class_path.as_ref()])
        .arg(suite::folder("java").join("Suite.java"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    class_path
}

#[cfg(not(feature = "rdkafka"))]
#[test]
fn rdkafka_is_announced_when_it_is_not_built_in() {
    skip::announce(
        "rdkafka",
        "built without the feature rdkafka",
        "cargo test --workspace --features rangeway-compat-tests/rdkafka",
    );
}
