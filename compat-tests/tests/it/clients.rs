//! One test per foreign client: its program runs against a broker of its own and every expected line must be ok.

use std::process::Command;

use rangeway_compat_tests::broker::installed;
use rangeway_compat_tests::suite::on_path;
use rangeway_compat_tests::{java, matrix, skip, suite};

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

#[test]
fn aiokafka_passes_its_lines() {
    python("aiokafka");
}

#[test]
fn sarama_passes_its_lines() {
    go("sarama");
}

#[test]
fn franz_go_passes_its_lines() {
    go("franz-go");
}

fn go(client: &str) {
    let program = installed().join(client).join("suite");
    if !on_path("go") || !program.is_file() {
        let missing = format!("no Go, or no {client} in {}", installed().display());
        return skip::announce(
            client,
            &missing,
            &format!("install Go 1.26, then compat-tests/install {client}"),
        );
    }
    // What is installed may be of an older source.
    suite::build_go(client, &program).unwrap();
    suite::run(client, Command::new(program)).unwrap();
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
fn the_java_client_and_kafkas_tools_pass_their_lines() {
    if !java::is_installed("java") {
        return;
    }
    java::compile("java", "Tools").unwrap();
    java::compile("java", "Scripts").unwrap();
    let class_path = java::compile("java", "Suite").unwrap();
    let mut program = Command::new("bash");
    program.arg("suite.sh").env("CLASSPATH", class_path);
    suite::run("java", program).unwrap();
}

#[test]
fn the_docs_show_every_suite_with_every_line_it_expects() {
    matrix::check(&std::fs::read_to_string(matrix::path()).unwrap_or_default()).unwrap();
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

#[cfg(not(feature = "containers"))]
#[test]
fn docker_is_announced_when_it_is_not_built_in() {
    skip::announce(
        "docker",
        "built without the feature containers",
        "cargo test --workspace --features rangeway-compat-tests/containers",
    );
}
