//! The program as a started process, and its command line.

use rangeway_gateway::bench::client::Connection;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// A started node; killed when dropped.
pub struct Node {
    pub child: Child,
    pub kafka: String,
    pub http: String,
}

pub fn rangeway(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rangeway")).args(args).env_remove("RUST_LOG").output().unwrap()
}

pub fn serve(data: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rangeway"));
    command.args(["serve", "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"]).arg(data).args(more);
    command.env_remove("RUST_LOG").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Node {
    pub fn start(data: &Path, more: &[&str]) -> Node {
        let mut child = serve(data, more).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let field = |name: &str| {
            let found = line.split_whitespace().find_map(|word| word.strip_prefix(name));
            found.unwrap_or_else(|| panic!("no {name} in '{line}'")).to_owned()
        };
        assert!(line.starts_with("rangeway ready "), "{line}");
        Node { kafka: field("kafka="), http: field("http="), child }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Status line and body of one HTTP request.
    pub fn http(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{headers}", self.http);
        write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    pub fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, text) = self.http(method, path, "", &body);
        (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    pub fn admin(&self, args: &[&str]) -> Output {
        rangeway(&[args, &["--server", &self.http]].concat())
    }

    pub fn kafka(&self) -> Connection {
        Connection::open(&self.kafka).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Gone already in tests that stopped it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
