//! Ports that nobody listens on, below the range from which the kernel takes source ports.
//!
//! A broker that is killed must come back on its port. A port from the ephemeral range could meanwhile become the
//! source port of a reconnecting client, or even be connected to itself by one.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Result, bail};

const FIRST: u16 = 20_000;
const LAST: u16 = 30_000;
const TRIES_MAX: u32 = 1_000;

/// A port on the loopback address that could be bound a moment ago.
pub fn free() -> Result<u16> {
    for _ in 0..TRIES_MAX {
        let port = fastrand::u16(FIRST..LAST);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {LAST} after {TRIES_MAX} tries")
}
