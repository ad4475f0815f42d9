//! A TCP proxy that loses answers: requests reach the broker, and instead of an answer, or amid one, the connection ends.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

const ACCEPT_PAUSE: Duration = Duration::from_millis(2);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// So many of a hundred answers are lost, half of them after their first bytes.
const LOST: u32 = 7;
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// See the module head.
#[derive(Debug)]
pub struct Proxy {
    listener: TcpListener,
    /// Where clients connect.
    pub address: SocketAddr,
    /// Answers lost until now.
    pub lost: AtomicU64,
}

impl Proxy {
    /// One on a free port.
    pub fn new() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, lost: AtomicU64::new(0) })
    }

    /// Connects clients with the broker at `target` while `goes_on`.
    pub fn run(&self, target: SocketAddr, seed: u64, goes_on: impl Fn() -> bool) {
        let mut random = fastrand::Rng::with_seed(seed);
        thread::scope(|threads| {
            while goes_on() {
                let Ok((client, _)) = self.listener.accept() else {
                    thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                let seed = random.u64(..);
                // A broker that is down refuses the connection, and the client sees it end.
                threads.spawn(move || self.connect(client, target, seed));
            }
        });
    }

    fn connect(&self, client: TcpStream, target: SocketAddr, seed: u64) -> io::Result<()> {
        client.set_nonblocking(false)?;
        let broker = TcpStream::connect_timeout(&target, CONNECT_LIMIT)?;
        for stream in [&client, &broker] {
            stream.set_nodelay(true)?;
        }
        let (mut from, mut to) = (client.try_clone()?, broker.try_clone()?);
        thread::spawn(move || {
            // Either end may break at any time; the other is told.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        let passed = self.answers(&broker, &client, seed);
        for stream in [&client, &broker] {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        passed
    }

    /// Passes answers on until one is lost.
    fn answers(&self, mut broker: &TcpStream, mut client: &TcpStream, seed: u64) -> io::Result<()> {
        let mut random = fastrand::Rng::with_seed(seed);
        loop {
            let mut length = [0; 4];
            broker.read_exact(&mut length)?;
            let size = u32::from_be_bytes(length) as usize;
            if size > ANSWER_BYTES_MAX {
                return Err(io::Error::other(format!("an answer of {size} bytes")));
            }
            let mut answer = length.to_vec();
            answer.resize(4 + size, 0);
            broker.read_exact(&mut answer[4..])?;
            if random.u32(..100) < LOST {
                self.lost.fetch_add(1, Ordering::Relaxed);
                let part = if random.bool() { 0 } else { random.usize(..answer.len()) };
                return client.write_all(&answer[..part]);
            }
            client.write_all(&answer)?;
        }
    }
}
