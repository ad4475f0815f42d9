//! One HTTP request at a time to a broker's second port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

/// Split and merge answer within 30 s.
const PATIENCE: Duration = Duration::from_secs(40);

/// Status and body of the answer. Errors: no connection, or one that broke before the answer was whole.
pub fn call(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an HTTP answer without a head")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((status.with_context(|| format!("an HTTP answer without a status: {head}"))?, body.to_owned()))
}
